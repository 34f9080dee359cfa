"""Train every family of the exam with the monitors on, and compare them with the peers' rules.

``python -m tests.evidence.exam.run [--only gpt2 unet] [--processes 2] [--fresh]`` prints a table and writes
``runs/exam/table.md``. Results
are kept as long as neither the package nor the exam changes, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from tests.evidence.exam.cases import Case
from tests.evidence.exam.catalogue import CASES
from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.evidence.faults.recorder import Recorder
from tests.evidence.faults.score import judge, judge_peers, serious
from tests.evidence.faults.training import QUIET, AlertLog, observers

FOLDER = Path("runs/exam")


def run_one(job: tuple[str, bool]) -> dict[str, Any]:
    """One training, of (name, planted)."""
    name, planted = job
    torch.set_num_threads(1)
    return observed(CASES[name], planted)


def observed(case: Case, planted: bool) -> dict[str, Any]:
    """Train once: the monitors' alerts, what they are worth, and the peers'."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        built = case.build() if case.healthy else case.build(planted)
        log, recorder = AlertLog(), Recorder()
        trainer = Trainer(**{**QUIET, **built.kwargs}, callbacks=[log, recorder, *observers(log)])
        with suppress(ValueError) if planted and not case.healthy else nullcontext():  # a library's own check of its numbers
            trainer.fit(built.module, **built.data)
    assert recorder.recording is not None
    history = log.history(built)
    row = {
        "name": case.name,
        "planted": planted,
        "healthy": case.healthy,
        "learned_from": case.learned_from,
        "library": case.library,
    }
    row |= {"story": case.story, "missed": case.missed, "alerts": serious(log.alerts)}
    row |= {"losses": [history.losses[0], history.losses[-1]], "batches": len(history.losses)}
    row["infos"] = sorted({(timed.alert.kind, timed.alert.site) for timed in log.alerts if timed.alert.severity == "info"})
    if not case.healthy and planted:
        row |= {"kinds": built.expected.kinds, "sites": built.expected.sites, **judge(log.alerts, built.expected, history)}
    return {**row, "peers": judge_peers(case.healthy or not planted, built.expected, history, recorder.recording)}


def jobs(names: list[str]) -> list[tuple[str, bool]]:
    """Each family, and each fault's twin."""
    return [(name, True) for name in names] + [(name, False) for name in names if not CASES[name].healthy]


def results(names: list[str], processes: int, fresh: bool) -> list[dict[str, Any]]:
    """Of all trainings of these families."""
    kept = FOLDER / f"runs-{fingerprint(Path(__file__).parent)}.jsonl"
    return run_all(run_one, jobs(names), kept, processes, fresh)


def table(rows: list[dict[str, Any]]) -> str:
    """The families as Markdown."""
    lines = ["| fault | library | half | found | site | alerts |", "|---|---|---|---|---|---|"]
    for row in (row for row in rows if not row["healthy"] and row["planted"]):
        said = "; ".join(sorted({f"{kind} at {site}" for kind, site, *_ in row["alerts"]})[:3])
        found = "yes" if row["found"] else f"no: {row['missed'] or 'expected ' + ' or '.join(row['kinds'])}"
        site = "-" if row["site"] is None else "yes" if row["site"] else "no"
        lines.append(f"| {row['story']} (`{row['name']}`) | {row['library']} | {half(row)} | {found} | {site} | {said} |")
    lines += ["", "| healthy | library | half | warnings |", "|---|---|---|---|"]
    for row in (row for row in rows if row["healthy"] or not row["planted"]):
        said = "; ".join(sorted({f"{kind} at {site}" for kind, site, *_ in row["alerts"]})[:3])
        twin = "" if row["healthy"] else ", twin"
        lines.append(f"| {row['story']} (`{row['name']}`{twin}) | {row['library']} | {half(row)} | {said} |")
    return "\n".join(lines)


def half(row: dict[str, Any]) -> str:
    """The half of a family, in words."""
    return "calibration" if row["learned_from"] else "report"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these families")
    parser.add_argument("--half", choices=("calibration", "report"), help="the families of this half")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    names = [name for name in options.only or CASES if CASES[name].installed]
    if options.half:
        names = [name for name in names if CASES[name].learned_from == (options.half == "calibration")]
    rows = results(names, options.processes, options.fresh)
    text = table(rows)
    publish(text, FOLDER / "table.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
