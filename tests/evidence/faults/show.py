"""Train one family of the zoo and print the alerts: ``python -m tests.evidence.faults.show NAME [--seed 0] [--well]``."""

from __future__ import annotations

import argparse

import torch

from tests.evidence.faults.catalogue import CASES
from tests.evidence.faults.training import build, train_monitored


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="families; none lists all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--well", action="store_true", help="of a fault, its twin without the fault")
    parser.add_argument("--every-n-steps", type=int, default=10)
    parser.add_argument("--messages", action="store_true", help="print the alerts' messages too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names or CASES:
        case = CASES[name]
        if not options.names:
            print(f"{name:32} {'healthy' if case.healthy else 'fault':8} {case.family:12} {case.story}")
            continue
        expected = build(case, options.seed).expected
        alerts, outcome, _ = train_monitored(case, options.seed, not options.well, every_n_steps=options.every_n_steps)
        print(f"{name}, seed {options.seed}: {case.story}.")
        print(f"  {outcome}")
        if expected.kinds:
            print(f"  Expected: {' or '.join(expected.kinds)} at {expected.sites or 'no layer'}, from batch {expected.batch} on.")
        for entry in alerts:
            alert = entry.alert
            marks = ("+" if alert.kind in expected.kinds else " ") + ("+" if expected.right_site(alert.site) else " ")
            print(f"  {marks} after {entry.batches:3} batches: [{alert.severity}] {alert.kind} at {alert.site} ({alert.value:.3g})")
            if options.messages:
                print(f"       {alert.text}")


if __name__ == "__main__":
    main()
