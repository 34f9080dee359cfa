"""Apply the remedies of the zoo's faults, train again, and count cures.

``python -m tests.evidence.cure.run [--only negative_bias lr_grows] [--seeds 0] [--processes 1] [--fresh]`` prints a table
and writes ``runs/cure/table.md`` and ``runs/cure/table.json``. Results are kept, one line per training, and used again
while neither the package, the zoo nor this folder has changed, those of the twins until --fresh.

Cured means: the validation score is at least the mean of the twins' minus two standard deviations, over three seeds; a standard
deviation below 0.01 counts as 0.01. A fault that leaves the score there by itself is not counted. The remedies are those of the
first alert above info that has any. Next to it: a random remedy of those that can be applied, and a tenth of the learning rate.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from lightning_hooks.declare.remedy import Remedy
from tests.evidence.cure.interpret import any_remedies, apply, tenth_of_rate
from tests.evidence.cure.planted import CAUSES, REPAIRS
from tests.evidence.faults.catalogue import FAULTS
from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.evidence.faults.training import AlertLog, build, observers, train
from tests.evidence.faults.zoo import Built

FOLDER = Path("runs/cure")
TWINS = (0, 1, 2)
"""Seeds of the healthy trainings that a cure is compared with."""
LEAST_SPREAD = 0.01
TRIES = ("first", "second", "random", "tenth")


def run_one(job: tuple[str, int, str]) -> dict[str, Any]:
    """A twin's score, or the score of a fault and of each try, with the cause that was named."""
    name, seed, what = job
    torch.set_num_threads(1)
    case = FAULTS[name]
    if what == "twin":
        return {"score": _score(build(case, seed, planted=False))}
    built, log = build(case, seed), AlertLog()
    outcome, _ = train(built, [log, *observers(log)])
    loud = [timed.alert for timed in log.alerts if timed.alert.severity != "info"]
    alert = next((alert for alert in loud if alert.remedies), loud[0] if loud else None)
    row: dict[str, Any] = {"score": _plain(outcome.score if outcome.finite else math.nan), "kinds": [one.kind for one in loud]}
    if alert is not None:
        row |= {"alert": alert.name, "causes": [[c.name, c.score, c.statement] for c in alert.causes]}
        row["remedies"] = [remedy.text for remedy in alert.remedies]
        for place, remedy in zip(TRIES[:2], alert.remedies, strict=False):
            row[place] = _with(name, seed, remedy)
    pool = any_remedies(build(case, seed))
    row["random"] = _with(name, seed, random.Random(f"{name}{seed}").choice(pool))
    row["tenth"] = _score(tenth_of_rate(build(case, seed)))
    return row


def _with(name: str, seed: int, remedy: Remedy) -> float | None:
    """The score with a remedy, of the twin where its words are the repair in code; None where nothing can be done."""
    case = FAULTS[name]
    changed = apply(remedy, build(case, seed))
    if changed is None and name in REPAIRS and re.search(REPAIRS[name], remedy.text):
        changed = build(case, seed, planted=False)
    return None if changed is None else _score(changed)


def _score(built: Built) -> float | None:
    try:
        outcome, _ = train(built)
    except Exception:  # noqa: BLE001 - a remedy that ends the training is no cure
        return None
    return _plain(outcome.score if outcome.finite else math.nan)


def _plain(score: float) -> float | None:
    return score if math.isfinite(score) else None


def judged(rows: Sequence[tuple[str, int, dict[str, Any]]], twins: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Each row with the limit that a cure reaches, and what reaches it."""
    found = []
    for name, seed, row in rows:
        scores = twins[name]
        spread = max(statistics.stdev(scores) if len(scores) > 1 else 0.0, LEAST_SPREAD)
        limit = statistics.mean(scores) - 2 * spread if scores else math.inf
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
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these families")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    unknown = sorted(set(options.only or ()) - FAULTS.keys())
    if unknown:
        parser.error(f"no such family: {', '.join(unknown)}")
    names = options.only or list(FAULTS)
    twins = [(name, seed, "twin") for name in names for seed in TWINS]
    zoo = Path(__file__).parents[1] / "faults"
    healthy = run_all(run_one, twins, FOLDER / "twins.jsonl", options.processes, options.fresh)
    jobs = [(name, seed, "fault") for name in names for seed in options.seeds]
    found = run_all(
        run_one, jobs, FOLDER / f"runs-{fingerprint(zoo, Path(__file__).parent)}.jsonl", options.processes, options.fresh
    )
    scores: dict[str, list[float]] = {name: [] for name in names}
    for (name, *_), row in zip(twins, healthy, strict=True):
        scores[name] += [row["score"]] if row["score"] is not None else []
    rows = judged([(name, seed, row) for (name, seed, _), row in zip(jobs, found, strict=True)], scores)
    c = counts(rows)
    text = (
        f"{c['trainings']} trainings with a fault; the planted cause is named first in {c['named']}. {c['harmful']} end with a "
        f"score below the twins'. Of these cured at the first try: {c['first']}; in two tries: {c['two']}; by a random remedy: "
        f"{c['random']}; by a tenth of the learning rate: {c['tenth']}."
    )
    publish(f"{text}\n\n{table(rows)}", FOLDER / "table.md")
    (FOLDER / "table.json").write_text(json.dumps({"counts": c, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
