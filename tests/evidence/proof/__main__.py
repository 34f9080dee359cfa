"""Run all of it: the zoo, the bugs of others, the exam, the lead times; print one table, with confidence intervals.

``python -m tests.evidence.proof [--quick] [--processes 2]`` writes ``runs/proof.md`` too. Every training's result is kept, so
that a run that was broken off goes on. ``--quick`` takes one seed of the zoo, and no lead times.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.evidence.bugs import run as bugs
from tests.evidence.exam import run as exam
from tests.evidence.exam.catalogue import CASES as EXAM
from tests.evidence.faults import run as zoo
from tests.evidence.faults.catalogue import CASES as ZOO
from tests.evidence.faults.jobs import publish
from tests.evidence.faults.zoo import CALIBRATION, SEEDS
from tests.evidence.lead import run as lead
from tests.evidence.proof.table import Section, missed, table

RESULT = Path("runs/proof.md")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed of the zoo, and no lead times")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="run all again")
    options = parser.parse_args()
    again = {"processes": options.processes, "fresh": options.fresh}
    seeds = [seed for seed in SEEDS if seed not in CALIBRATION][: 1 if options.quick else None]
    installed = [name for name, case in EXAM.items() if case.installed]
    left = len(EXAM) - len(installed)
    print(f"The zoo, seeds {seeds}")
    of_zoo = zoo.results(list(ZOO), seeds, **again, twins=not options.quick)
    print("The bugs of others")
    of_bugs = bugs.results(list(bugs.CASES), **again)
    print(f"Real trainings ({left} families left out: their libraries are not installed; make exam installs them)")
    of_exam = exam.results(installed, **again)
    sections = [
        Section("zoo, report seeds", of_zoo),
        Section("bugs of others", of_bugs),
        Section("real trainings, calibration", [run for run in of_exam if run["learned_from"]]),
        Section("real trainings, report", [run for run in of_exam if not run["learned_from"]]),
    ]
    parts = [table(sections), "Not found, at another site, or a false alarm:", missed(sections)]
    if not options.quick:
        print("Lead times")
        parts += ["Steps from the first warning to the loss's divergence:", lead.table(lead.results(**again))]
    text = "\n\n".join(parts)
    publish(text, RESULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
