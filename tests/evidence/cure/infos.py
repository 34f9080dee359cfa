"""Do what infos of healthy trainings say, train again, and see whether one got worse: an info is to do no harm.

``python -m tests.evidence.cure.infos [--only dropout] [--seeds 0] [--processes 1] [--fresh]`` prints a table, and writes it to
``runs/cure/infos.md``. Of each info that has remedies the first one is applied alone. *Worse* means a score below the mean of the
same training without it minus two standard deviations, over three seeds, as in ``tests.evidence.cure.run``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from tests.evidence.cure.interpret import apply
from tests.evidence.cure.run import FOLDER, TWINS, limit_of, plain, tried
from tests.evidence.cure.trainings import trainings
from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.evidence.faults.training import AlertLog, observers


def run_one(job: tuple[str, int, bool]) -> dict[str, Any]:
    """The score of a healthy training; if its infos are wanted, also the score with the first remedy of each."""
    name, seed, wanted = job
    torch.set_num_threads(1)
    known = trainings("zoo")
    case = known.healthy[name]
    if not wanted:
        return {"score": plain(known.score(known.build(case, seed, False), ()))}
    log = AlertLog()
    row: dict[str, Any] = {"score": plain(known.score(known.build(case, seed, False), [log, *observers(log)])), "infos": []}
    infos = [timed.alert for timed in log.alerts if timed.alert.severity == "info"]
    row["without"] = sum(not alert.remedies for alert in infos)
    first = {alert.remedies[0].text: alert for alert in infos if alert.remedies}
    for text, alert in first.items():
        remedy = alert.remedies[0]
        can = apply(remedy, known.build(case, seed, False)) is not None
        score = tried(known, lambda remedy=remedy: apply(remedy, known.build(case, seed, False)))  # type: ignore[misc]
        row["infos"].append({"info": alert.name, "remedy": text, "applied": can, "score": score})
    return row


def judged(rows: Sequence[tuple[str, int, Mapping[str, Any]]], twins: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """Each remedy with the limit of its training, and whether that got worse; one that cannot be applied makes nothing worse."""
    return [
        {"name": name, "seed": seed, "without": row["score"], "limit": limit_of(twins[name]), **info,
         "worse": info["applied"] and not (info["score"] is not None and info["score"] >= limit_of(twins[name]))}
        for name, seed, row in rows
        for info in row["infos"]
    ]  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The results as Markdown."""
    lines = ["| healthy training | seed | info | its first remedy | score without | limit | with it | worse |", "|" + "---|" * 8]
    for row in rows:
        with_it = "-" if not row["applied"] else "broke" if row["score"] is None else f"{row['score']:.3f}"
        remedy = row["remedy"].replace("|", "\\|")
        verdict = "yes" if row["worse"] else "no" if row["applied"] else "-"
        shown = (row["name"], row["seed"], row["info"], remedy, f"{row['without']:.3f}", f"{row['limit']:.3f}", with_it, verdict)
        lines.append(f"| {' | '.join(map(str, shown))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these families")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    known = trainings("zoo")
    names = options.only or list(known.healthy)
    mark = fingerprint(known.folder, Path(__file__).parent)
    jobs = [(name, seed, True) for name in names for seed in options.seeds]
    found = run_all(run_one, jobs, FOLDER / f"infos-{mark}.jsonl", options.processes, options.fresh)
    rows = [(name, seed, row) for (name, seed, _), row in zip(jobs, found, strict=True)]
    applied = sorted({name for name, _, row in rows if any(info["applied"] for info in row["infos"])})
    wanted = [(name, seed, False) for name in applied for seed in TWINS]
    scores = run_all(run_one, wanted, FOLDER / "healthy.jsonl", options.processes, options.fresh)
    twins: dict[str, list[float]] = {name: [] for name in names}
    for (name, *_), row in zip(wanted, scores, strict=True):
        twins[name] += [row["score"]] if row["score"] is not None else []
    results = judged(rows, twins)
    text = (
        f"{len(rows)} healthy trainings have {sum(row['without'] + len(row['infos']) for *_, row in rows)} infos; "
        f"{len(results)} with a remedy, of which {sum(row['applied'] for row in results)} can be applied as they stand. Of these "
        f"{sum(row['worse'] for row in results)} make the training worse."
    )
    publish(f"{text}\n\n{table(results)}", FOLDER / "infos.md")


if __name__ == "__main__":
    main()
