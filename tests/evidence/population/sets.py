"""The same rows of the sets that were written by hand: zoo, exam, bugs and lead.

``python -m tests.evidence.population.sets [--only zoo exam] [--names gan unet] [--seeds 0 1] [--processes 2]`` adds them to
``runs/population/sets.jsonl.gz``. What is in the table already is left out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch
from lightning.pytorch import Trainer

from tests.evidence.bugs.catalogue import CASES as BUGS
from tests.evidence.cure.planted import CAUSES
from tests.evidence.exam.catalogue import CASES as EXAM
from tests.evidence.faults.catalogue import CASES as ZOO
from tests.evidence.faults.training import QUIET, build
from tests.evidence.faults.zoo import SEEDS, Built, Expected
from tests.evidence.lead.cases import CASES as LEAD
from tests.evidence.lead.cases import WINDOW
from tests.evidence.lead.instabilities import Learner as Learner  # noqa: PLC0414  enters the cases
from tests.evidence.population.record import append, read, recording, row_of

TABLE = Path("runs/population/sets.jsonl.gz")


class Job(NamedTuple):
    """One training of a set."""

    of_set: str
    name: str
    seed: int
    planted: bool


def of_zoo(job: Job) -> tuple[Built, dict[str, Any]]:
    return build(ZOO[job.name], job.seed, job.planted), {}


def of_exam(job: Job) -> tuple[Built, dict[str, Any]]:
    torch.manual_seed(0)
    case = (EXAM if job.of_set == "exam" else BUGS)[job.name]
    return case.build() if case.healthy else case.build(job.planted), {}


def of_lead(job: Job) -> tuple[Built, dict[str, Any]]:
    torch.manual_seed(job.seed)
    training = LEAD[job.name].build(job.planted)
    kwargs = {**training.kwargs, "max_epochs": 1}
    built = Built(training.module, {"train_dataloaders": training.loader}, kwargs, Expected())
    return built, {"every_n_steps": 5, "report_every_n_steps": WINDOW}


BUILDERS: dict[str, Callable[[Job], tuple[Built, dict[str, Any]]]] = {
    "zoo": of_zoo,
    "exam": of_exam,
    "bugs": of_exam,
    "lead": of_lead,
}


def jobs(of_set: str, seeds: list[int]) -> Iterator[Job]:
    """All trainings of a set, each fault's twin too; of the exam and the bugs there is one seed."""
    if of_set == "lead":
        yield from (Job("lead", name, seed, planted) for name in LEAD for seed in seeds for planted in (True, False))
        return
    cases: Any = {"zoo": ZOO, "exam": EXAM, "bugs": BUGS}[of_set]
    for name, case in cases.items():
        if getattr(case, "installed", True) and not getattr(case, "processes", 0):
            for seed in seeds if of_set == "zoo" else [0]:
                yield from (Job(of_set, name, seed, planted) for planted in ((False,) if case.healthy else (True, False)))


def row(job: Job) -> dict[str, Any]:
    """Train, and return the row."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built, watched = BUILDERS[job.of_set](job)
        recorder, callbacks = recording(**watched)
        trainer = Trainer(**{**QUIET, **built.kwargs}, callbacks=callbacks)
        with suppress(ValueError):  # a library's own check of its numbers
            trainer.fit(built.module, **built.data)
    score = trainer.callback_metrics.get("val_score")
    truth: dict[str, Any] = {}
    if job.planted:
        causes, expected = CAUSES.get(job.name, ()), built.expected
        truth = {"operators": [job.name], "causes": causes, "sites": expected.sites, "kinds": expected.kinds, "harmful": True}
    number = None if score is None else float(score)
    return row_of(job.of_set, job.name, job.seed, recorder.row(), healthy=True, score=number, **truth)


def attempt(job: Job) -> tuple[Job, dict[str, Any] | str]:
    """The row, or what was raised as text."""
    try:
        return job, row(job)
    except Exception as error:  # noqa: BLE001 - a library's, the monitors', the set's own
        return job, repr(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=tuple(BUILDERS), default=list(BUILDERS), help="these sets")
    parser.add_argument("--names", nargs="*", help="these families")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    wanted = [job for of_set in options.only for job in jobs(of_set, options.seeds) if job.name in (options.names or [job.name])]
    rows = read(TABLE) if TABLE.exists() else []
    done = {(row["set"], row["name"], row["seed"], bool(row["operators"])) for row in rows}
    wanted = [job for job in wanted if tuple(job) not in done]
    failed = 0
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=40) as pool:
        for number, (job, found) in enumerate(pool.imap_unordered(attempt, wanted), start=1):
            if isinstance(found, str):
                failed += 1
                print(f"{job}: {found}")
            else:
                append(TABLE, found)
            if number % 25 == 0 or number == len(wanted):
                print(f"{number} of {len(wanted)} trainings", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
