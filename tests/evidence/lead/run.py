"""Measure how many steps before the loss diverges the monitors warn.

``python -m tests.evidence.lead.run [--only bursts] [--seeds 0 1] [--processes 2] [--fresh]`` prints a table and writes it to
``runs/lead/table.md``.
Each instability has a healthy twin. The first warning is the first warning or critical whose kind the twin of the same seed has not
raised; the divergence is the first of 20 batches in a row whose loss is more than twice its running minimum, or the first that is
not finite. A training without a warning before that has a lead time of 0. Results are kept, and a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch
from lightning.pytorch import Trainer

from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.evidence.faults.score import serious
from tests.evidence.faults.training import QUIET, AlertLog, observers
from tests.evidence.lead.cases import CASES, SEEDS, WINDOW, divergence, lead_time, median_with_interval
from tests.evidence.lead.instabilities import Learner as Learner  # noqa: PLC0414  enters the cases

FOLDER = Path("runs/lead")
CALIBRATION = (0, 1)
"""Seeds of the instabilities for calibration on which rules may be set; all else is the report."""


def run_one(job: tuple[str, int, bool]) -> dict[str, Any]:
    """One training, of (name, seed, planted): its alerts, and when its loss diverges."""
    name, seed, planted = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    training, log = CASES[name].build(planted), AlertLog()
    watching = observers(log, every_n_steps=5, report_every_n_steps=WINDOW)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(**{**QUIET, **training.kwargs}, max_epochs=1, callbacks=[log, *watching])
        trainer.fit(training.module, training.loader)
    losses = [loss.item() for loss in log.losses]
    return {
        "name": name,
        "seed": seed,
        "planted": planted,
        "story": CASES[name].story,
        "calibrates": CASES[name].calibrates and seed in CALIBRATION,
        "alerts": serious(log.alerts),
        "diverged": divergence(losses),
        "losses": [round(loss, 4) if loss == loss and abs(loss) < 1e300 else None for loss in losses[::10]],
    }


def results(processes: int, fresh: bool, names: list[str] | None = None, seeds: list[int] | None = None) -> list[dict[str, Any]]:
    """Of all trainings and their twins; each faulty one with its first warning and its lead time."""
    kept = FOLDER / f"runs-{fingerprint(Path(__file__).parent)}.jsonl"
    jobs = [(name, seed, planted) for name in names or CASES for seed in seeds or SEEDS for planted in (True, False)]
    return with_lead_times(run_all(run_one, jobs, kept, processes, fresh))


def with_lead_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows; those of faulty trainings with ``first``, the first warning that is not in the twin, and ``lead``."""
    usual = {(row["name"], row["seed"]): {kind for kind, *_ in row["alerts"]} for row in rows if not row["planted"]}
    for row in rows:
        if row["planted"]:
            new = [alert for alert in row["alerts"] if alert[0] not in usual[row["name"], row["seed"]]]
            row["first"] = new[0] if new else None
            row["lead"] = None if row["diverged"] is None else lead_time(new[0][3] if new else None, row["diverged"])
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The lead times as Markdown: of each instability, of the report's trainings, and of all."""
    lines = ["| instability | lead time: median (95 % interval) | each seed | warned by | diverges at | alarms in twins |"]
    lines.append("|---|---|---|---|---|---|")
    for name in dict.fromkeys(row["name"] for row in rows):
        mine = [row for row in rows if row["name"] == name]
        lines.append(_line(f"{mine[0]['story']} (`{name}`)", mine))
    report = [row for row in rows if not row["calibrates"]]
    return "\n".join([*lines, _line("**all but the trainings for calibration**", report), _line("**all**", rows)])


def _line(what: str, rows: list[dict[str, Any]]) -> str:
    faulty, twins = ([row for row in rows if row["planted"] is planted] for planted in (True, False))
    leads = [row["lead"] for row in faulty if row["lead"] is not None]
    median, low, high = median_with_interval(leads)
    few = len(faulty) <= len(SEEDS)
    kinds = ", ".join(dict.fromkeys(row["first"][0] for row in faulty if row["first"])) if few else ""
    when = ", ".join("never" if row["diverged"] is None else str(row["diverged"]) for row in faulty) if few else ""
    each = ", ".join(map(str, leads)) if few else f"{len(leads)} trainings"
    alarms = f"{sum(bool(row['alerts']) for row in twins)} of {len(twins)}"
    return f"| {what} | {median:.0f} ({low:.0f} to {high:.0f}) | {each} | {kinds} | {when} | {alarms} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these instabilities")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    rows = results(options.processes, options.fresh, options.only, options.seeds)
    text = table(rows)
    publish(text, FOLDER / "table.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
