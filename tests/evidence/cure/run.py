"""Apply the remedies of faults, train again, and count cures.

``python -m tests.evidence.cure.run [--of zoo] [--only negative_bias lr_grows] [--seeds 0] [--processes 1] [--fresh]`` prints a
table and writes ``runs/cure/zoo.md`` and ``runs/cure/zoo.json``; ``--of bugs`` takes the bugs of others, ``--of exam`` the exam's
faults. Results are kept, one line per training, and used again while neither the package, the trainings nor this folder has
changed, those of the twins until --fresh.

Cured means: the score is at least the mean of the twins' minus two standard deviations, over three seeds, or that of the twin of
the same seed, if it is lower; a standard deviation below 0.01 counts as 0.01, and so does one below a hundredth of the mean. The
score is the last validation's; without one minus the
last training loss, which says nothing where the fault is in the loss itself. A fault that leaves the score there by itself is not
counted. The remedies are those of the first alert above info that has any. Next to it: a random remedy of those that can be
applied, and a tenth of the learning rate. A remedy in words counts as the repair where its cause is the planted one and its words
name the repair (``planted.py``).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from lightning_hooks.declare.cause import Remedy
from tests.evidence.cure.configured import tenth_of_rate
from tests.evidence.cure.interpret import any_remedies, apply
from tests.evidence.cure.planted import CAUSES, REPAIRS
from tests.evidence.cure.trainings import Trainings, trainings
from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.evidence.faults.training import AlertLog, observers
from tests.evidence.faults.zoo import Built

FOLDER = Path("runs/cure")
TWINS = (0, 1, 2)
"""Seeds of the healthy trainings that a cure is compared with."""
LEAST_SPREAD = 0.01
TRIES = ("first", "second", "random", "tenth")


def run_one(job: tuple[str, int, str], of: str = "zoo", brief: bool = False) -> dict[str, Any]:
    """A twin's score, or the score of a fault and of each try, with the cause that was named; if brief without comparisons."""
    name, seed, what = job
    torch.set_num_threads(1)
    known = trainings(of)
    case = known.faults[name]
    if what == "twin":
        return {"score": plain(known.score(known.build(case, seed, False), ()))}
    log = AlertLog()
    row: dict[str, Any] = {"score": plain(known.score(known.build(case, seed, True), [log, *observers(log)]))}
    loud = [timed.alert for timed in log.alerts if timed.alert.severity != "info"]
    alert = next((alert for alert in loud if alert.remedies), loud[0] if loud else None)
    row["kinds"] = [one.kind for one in loud]
    if alert is not None:
        row |= {"alert": alert.name, "causes": [[c.name, c.probability, c.statement] for c in alert.causes]}
        row["remedies"] = [remedy.text for remedy in alert.remedies]
        of = {remedy: cause.name for cause in alert.causes for remedy in cause.remedies}
        for place, remedy in zip(TRIES[:2], alert.remedies, strict=False):
            row[place] = _with(known, name, seed, remedy, of.get(remedy, ""))
    if brief:
        return row
    pool = any_remedies(known.build(case, seed, True))
    chosen = random.Random(f"{name}{seed}").choice(pool)
    row["random"] = _with(known, name, seed, chosen)
    row["tenth"] = tried(known, lambda: tenth_of_rate(known.build(case, seed, True)))
    return row


def _with(known: Trainings, name: str, seed: int, remedy: Remedy, cause: str = "") -> float | None:
    """The score with a remedy, of the twin where cause and words are the repair in code; None where nothing can be done."""

    def changed() -> Built | None:
        done = apply(remedy, known.build(known.faults[name], seed, True))
        if done is None and cause in CAUSES.get(name, ()) and re.search(REPAIRS.get(name, r"\b\B"), remedy.text):
            return known.build(known.faults[name], seed, False)
        return done

    return tried(known, changed)


def tried(known: Trainings, make: Callable[[], Built | None]) -> float | None:
    """The score of a training that something was done to; None where nothing can be, and where the training ends with an error."""
    try:
        built = make()
        return None if built is None else plain(known.score(built, ()))
    except Exception:  # noqa: BLE001 - a remedy that ends the training is no cure
        return None


def plain(score: float) -> float | None:
    """A score as JSON can hold it."""
    return score if math.isfinite(score) else None


def limit_of(scores: Sequence[float]) -> float:
    """The least score of a training that is as good as its healthy twins."""
    if not scores:
        return math.inf
    mean = statistics.mean(scores)
    spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return mean - 2 * max(spread, LEAST_SPREAD, LEAST_SPREAD * abs(mean))


def judged(rows: Sequence[tuple[str, int, dict[str, Any]]], twins: dict[str, dict[int, float]]) -> list[dict[str, Any]]:
    """Each row with the limit that a cure reaches, and what reaches it, given the score of the twin of each seed."""
    found = []
    for name, seed, row in rows:
        of_seeds = twins[name]
        limit = min(limit_of([of_seeds[one] for one in TWINS if one in of_seeds]), of_seeds.get(seed, math.inf))
        reached = {key: row.get(key) is not None and row[key] >= limit for key in ("score", *TRIES)}
        named = row["causes"][0][0] if row.get("causes") else ""
        found.append(
            {"name": name, "seed": seed, **row, "limit": limit, "harmful": not reached["score"], "named": named,
             "right": named in CAUSES.get(name, ()), "cured": {key: reached[key] for key in TRIES}}
        )  # fmt: skip
    return found


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Of the faults that do harm: how many there are, and how many each try cures."""
    harmful = [row for row in rows if row["harmful"]]
    return {
        "trainings": len(rows),
        "harmful": len(harmful),
        "named": sum(row["right"] for row in rows),
        "first": sum(row["cured"]["first"] for row in harmful),
        "two": sum(row["cured"]["first"] or row["cured"]["second"] for row in harmful),
        "random": sum(row["cured"]["random"] for row in harmful),
        "tenth": sum(row["cured"]["tenth"] for row in harmful),
    }


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| fault | seed | harm | alert | cause named | right | first try | second | random | tenth of the rate |",
        "|" + "---|" * 10,
    ]
    for row in rows:
        marks = ["yes" if row["cured"][key] else "-" if row.get(key) is None else "no" for key in TRIES]
        shown = (row["name"], row["seed"], "yes" if row["harmful"] else "no", row.get("alert", "-"), row["named"] or "-")
        lines.append(f"| {' | '.join(map(str, (*shown, 'yes' if row['right'] else 'no', *marks)))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=("zoo", "bugs", "exam"), default="zoo", help="which trainings")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these families")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    parser.add_argument("--brief", action="store_true", help="without the comparisons: a random remedy, a tenth of the rate")
    options = parser.parse_args()
    known = trainings(options.of)
    unknown = sorted(set(options.only or ()) - known.faults.keys())
    if unknown:
        parser.error(f"no such family: {', '.join(unknown)}")
    names = options.only or list(known.faults)
    twins = [(name, seed, "twin") for name in names for seed in sorted({*TWINS, *options.seeds})]
    run, more = partial(run_one, of=options.of, brief=options.brief), (options.processes, options.fresh)
    healthy = run_all(run, twins, FOLDER / f"twins-{options.of}.jsonl", *more)
    jobs = [(name, seed, "fault") for name in names for seed in options.seeds]
    runs = FOLDER / f"runs-{options.of}{'-brief' * options.brief}-{fingerprint(known.folder, Path(__file__).parent)}.jsonl"
    found = run_all(run, jobs, runs, *more)
    scores: dict[str, dict[int, float]] = {name: {} for name in names}
    for (name, seed, _), row in zip(twins, healthy, strict=True):
        scores[name] |= {seed: row["score"]} if row["score"] is not None else {}
    rows = judged([(name, seed, row) for (name, seed, _), row in zip(jobs, found, strict=True)], scores)
    c = counts(rows)
    text = (
        f"{c['trainings']} trainings with a fault; the planted cause is named first in {c['named']}. {c['harmful']} end with a "
        f"score below the twins'. Of these cured at the first try: {c['first']}; in two tries: {c['two']}; by a random remedy: "
        f"{c['random']}; by a tenth of the learning rate: {c['tenth']}."
    )
    publish(f"{text}\n\n{table(rows)}", FOLDER / f"{options.of}.md")
    (FOLDER / f"{options.of}.json").write_text(json.dumps({"counts": c, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
