"""Train every recipe with the monitors on, healthy and with its mistake, and count.

``python -m tests.evidence.recipes.run [--sets second] [--only NAME …] [--processes 2]`` prints a table and writes
``runs/recipes/rows.json``. A mistake is *found* if the training has a warning of a kind that the same training without it does not
have.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer

from lightning_hooks import monitors
from tests.evidence.faults.training import QUIET, AlertLog
from tests.evidence.recipes.case import FAULTS, HEALTHY, SETS, load, set_of

ROWS = Path("runs/recipes/rows.json")


def run(job: tuple[str, str]) -> dict[str, Any]:
    """The alerts above info of one training: ``healthy``, ``planted``, or the ``twin`` of a fault."""
    what, name = job
    load()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    log, began = AlertLog(), time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build = HEALTHY[name] if what == "healthy" else FAULTS[name].planted if what == "planted" else FAULTS[name].healthy
        training = build()
        observers = monitors(summary=False, on_alert=log.note)
        raised = ""
        options = {**QUIET, **training.trainer, "callbacks": [log, *training.trainer.get("callbacks", ()), *observers]}
        try:
            Trainer(**options).fit(training.module, **training.loaders)
        except Exception as error:  # noqa: BLE001 - the mistake's own: what was said before it counts
            raised = repr(error)
    alerts = [timed.alert for timed in log.alerts if timed.alert.severity != "info"]
    said = [
        {
            "kind": alert.kind, "site": alert.site, "title": alert.title, "message": alert.message, "step": alert.step,
            "probability": alert.probability, "causes": [cause.name for cause in alert.causes[:1]],
            "remedies": [remedy.text for remedy in alert.remedies[:1]],
        }
        for alert in alerts
    ]  # fmt: skip
    return {"what": what, "name": name, "alerts": said, "raised": raised, "seconds": round(time.perf_counter() - began, 1)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """What was found, as Markdown."""
    kinds = {(row["what"], row["name"]): {alert["kind"] for alert in row["alerts"]} for row in rows}
    healthy = [row for row in rows if row["what"] == "healthy"]
    warned = [row["name"] for row in healthy if row["alerts"]]
    lines = [f"{len(warned)} of {len(healthy)} healthy trainings have a warning: {', '.join(warned) or 'none'}.", ""]
    planted = [row for row in rows if row["what"] == "planted"]
    found = [row for row in planted if kinds["planted", row["name"]] - kinds.get(("twin", row["name"]), set())]
    lines += [f"{len(found)} of {len(planted)} mistakes are found.", "", "| mistake | found | first alert |", "|---|---|---|"]
    for row in planted:
        first = f"{row['alerts'][0]['kind']}: {row['alerts'][0]['title']}" if row["alerts"] else ""
        lines.append(f"| {FAULTS[row['name']].story} | {'yes' if row in found else 'no'} | {first} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", choices=[*SETS], default=[*SETS], help="these sets")
    parser.add_argument("--only", nargs="*", help="these recipes and mistakes")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    load()
    jobs = [("healthy", name) for name, recipe in HEALTHY.items() if set_of(recipe) in options.sets]
    mistakes = [name for name, fault in FAULTS.items() if set_of(fault.healthy) in options.sets]
    jobs += [(what, name) for name in mistakes for what in ("planted", "twin")]
    jobs = [job for job in jobs if job[1] in (options.only or [job[1]])]
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=20) as pool:
        rows = list(pool.imap_unordered(run, jobs))
    order = {job: place for place, job in enumerate(jobs)}
    rows.sort(key=lambda row: order[row["what"], row["name"]])
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    ROWS.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print(table(rows))


if __name__ == "__main__":
    main()
