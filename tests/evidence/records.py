"""Write the record of each kind of alert from results of the evidence: ``lightning_hooks/declare/records.json``.

``python -m tests.evidence.records runs/exam/runs-….jsonl runs/faults/runs-….jsonl …`` reads results that are kept; ``python -m
tests.evidence.proof`` writes the file at its end. A family counts once, whatever the number of its seeds; a fault's twin is a
healthy family. Families that nothing was tuned on are those of the exam's report.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning_hooks.alerts  # noqa: F401  it fills the registry
from lightning_hooks.declare.kinds import KINDS

FILE = Path(__file__).parents[2] / "lightning_hooks" / "declare" / "records.json"
MOST = 0.5
"""Share of a family's trainings in which a kind is raised from which it counts; in a healthy one a single training does."""


def records(runs: Iterable[Mapping[str, Any]], date: str, commit: str = "") -> dict[str, Any]:
    """What the file holds.

    Args:
        runs: The results of trainings, of the zoo, of the exam, or of the bugs of others.
        date: When they were trained.
        commit: Of the package.

    Returns:
        The number of healthy families; by kind: of these, those in which it was raised; the faults that it names and in which it
        was raised; the faults that it names; of families that nothing was tuned on, such faults, and healthy ones with an alert.
    """
    healthy: dict[Any, list[Mapping[str, Any]]] = {}
    faults: dict[Any, list[Mapping[str, Any]]] = {}
    for run in runs:
        well = run["healthy"] or not run["planted"]
        (healthy if well else faults).setdefault((run["name"], run["planted"], "seed" in run), []).append(run)
    kinds = {}
    for kind in KINDS:
        alarms = [family for family in healthy.values() if any(kind in raised(run) for run in family)]
        named = [family for family in faults.values() if kind in family[0]["kinds"]]
        found = [family for family in named if sum(kind in raised(run) for run in family) >= MOST * len(family)]
        right, wrong = (sum(not family[0].get("learned_from", True) for family in some) for some in (found, alarms))
        kinds[kind] = [len(alarms), len(found), len(named), right, wrong]
    return {"date": date, "commit": commit, "healthy": len(healthy), "kinds": kinds}


def raised(run: Mapping[str, Any]) -> set[str]:
    """The kinds that were raised above info, or that only their record made an info."""
    return {alert[0] for alert in run["alerts"]} | set(run.get("unreliable", ()))


def text(found: Mapping[str, Any]) -> str:
    """The file, a line for each kind."""
    lines = [f"    {json.dumps(kind)}: {json.dumps(numbers)}" for kind, numbers in found["kinds"].items()]
    head = "".join(f"  {json.dumps(key)}: {json.dumps(found[key])},\n" for key in found if key != "kinds")
    return "{\n" + head + '  "kinds": {\n' + ",\n".join(lines) + "\n  }\n}\n"


def write(runs: Iterable[Mapping[str, Any]]) -> None:
    """Write the file."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    FILE.write_text(text(records(runs, date, commit)), encoding="utf-8")


if __name__ == "__main__":
    write(json.loads(line)[1] for name in sys.argv[1:] for line in Path(name).read_text().splitlines())
