"""Train every bug of others, its twin and the healthy programs with the monitors on, and compare them with the peers' rules.

``python -m tests.evidence.bugs.run [--only softmax_before_loss vae] [--processes 2] [--fresh]`` prints a table, and writes it to
``runs/bugs/table.md``. Results are kept as long as neither the package nor the bugs change: a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.evidence.bugs.catalogue import CASES
from tests.evidence.exam.run import observed
from tests.evidence.faults.jobs import fingerprint, publish, run_all
from tests.support.two_processes import run_twice

FOLDER = Path("runs/bugs")


def run_one(job: tuple[str, bool]) -> dict[str, Any]:
    """One training, of (name, planted): the monitors' alerts, what they are worth, and the peers'."""
    name, planted = job
    case = CASES[name]
    torch.set_num_threads(1)
    if case.processes == 0:
        row = observed(case, planted)
    else:
        with tempfile.TemporaryDirectory() as folder:
            row = _elsewhere(Path(folder), job, case.processes)
    return {**row, "thread": case.thread, "processes": case.processes}


def _elsewhere(folder: Path, job: tuple[str, bool], processes: int) -> dict[str, Any]:
    """The row of a training in a process of its own, or of rank 0 of two."""
    (folder / "job.json").write_text(json.dumps(job))
    if processes == 2:
        row: dict[str, Any] = run_twice("tests.evidence.bugs.single", folder)["row"][0]
        return row
    subprocess.run([sys.executable, "-m", "tests.evidence.bugs.single", str(folder)], check=True, capture_output=True)
    kept: dict[str, Any] = pickle.loads((folder / "0.pickle").read_bytes())["row"]
    return kept


def jobs(names: list[str]) -> list[tuple[str, bool]]:
    """Each case, and each bug's twin."""
    return [(name, True) for name in names] + [(name, False) for name in names if not CASES[name].healthy]


def results(names: list[str], processes: int, fresh: bool) -> list[dict[str, Any]]:
    """Of all trainings of these cases."""
    kept = FOLDER / f"runs-{fingerprint(Path(__file__).parent)}.jsonl"
    return run_all(run_one, jobs(names), kept, processes, fresh)


def address(thread: str) -> str:
    """A Markdown link to a thread."""
    repository, number = thread.partition("#")[::2]
    if number:
        return f"[{thread}](https://github.com/{repository}/issues/{number})"
    if thread.startswith("pytorch/examples/"):
        return f"[{thread}](https://github.com/pytorch/examples/tree/main/{thread.removeprefix('pytorch/examples/')})"
    return f"[{thread}](https://{thread})"


def said(row: dict[str, Any]) -> str:
    """The first warnings of a training, in words."""
    return "; ".join(dict.fromkeys(f"{kind} at {site}" for kind, site, *_ in row["alerts"][:3]))


def table(rows: list[dict[str, Any]]) -> str:
    """The cases as Markdown."""
    bugs = [row for row in rows if not row["healthy"] and row["planted"]]
    well = [row for row in rows if row["healthy"] or not row["planted"]]
    lines = ["| bug | thread | found by | batches | site | first alerts |", "|---|---|---|---|---|---|"]
    for row in bugs:
        kinds = {kind for kind, *_ in row["alerts"]} & set(row["kinds"])
        found = ", ".join(sorted(kinds)) if row["found"] else f"**no**: {row['missed'] or 'expected ' + ' or '.join(row['kinds'])}"
        site = "-" if row["site"] is None else "yes" if row["site"] else "no"
        cells = [f"{row['story']} (`{row['name']}`)", address(row["thread"]), found, str(row["batches"] or "-"), site, said(row)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| healthy program or twin | from | warnings |", "|---|---|---|"]
    for row in well:
        name = f"{row['story']} (`{row['name']}`)" if row["healthy"] else f"twin of `{row['name']}`"
        lines.append(f"| {name} | {address(row['thread']) if row['healthy'] else ''} | {said(row)} |")
    alarms = sum(bool(row["alerts"]) for row in well)
    lines += [
        "",
        f"{sum(row['found'] for row in bugs)} of {len(bugs)} bugs found; warnings in {alarms} of {len(well)} twins and programs.",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="these cases")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    text = table(results(options.only or list(CASES), options.processes, options.fresh))
    publish(text, FOLDER / "table.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
