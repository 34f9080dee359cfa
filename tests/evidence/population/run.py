"""Draw trainings and mutants, train them with the monitors on, and keep a row of each.

``python -m tests.evidence.population.run --seeds 0:150 --processes 2 --out runs/population`` writes ``rows.jsonl.gz`` and
``seconds.jsonl`` there, and goes on where it was broken off. The same seed makes the same rows on one machine. Seeds 0 to 9 999
are for development; those from 1 000 000 on are for reports, each used once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.evidence.population.record import append, packed, read


def done(path: Path) -> set[int]:
    """The seeds whose rows are kept; those of a seed that was broken off are removed."""
    if not path.exists():
        return set()
    rows: dict[int, list[dict[str, Any]]] = {}
    for one in read(path):
        rows.setdefault(one["seed"], []).append(one)
    whole = {seed: of for seed, of in rows.items() if len(of) == of[0]["rows"]}
    path.write_bytes(b"".join(packed(one) for of in whole.values() for one in of))
    return set(whole)


def rows_of(seed: int) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """In a process of its own: the package is imported there."""
    from tests.evidence.population.pairs import pair

    rows, seconds = pair(seed)
    return seed, [{**one, "rows": len(rows)} for one in rows], seconds


def run(seeds: range, processes: int, out: Path) -> None:
    """Keep the rows of these seeds, in their order."""
    path = out / "rows.jsonl.gz"
    out.mkdir(parents=True, exist_ok=True)
    known = done(path)
    wanted = [seed for seed in seeds if seed not in known]
    os.environ["OMP_NUM_THREADS"] = "1"
    start, pairs = time.perf_counter(), 0
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=50) as pool:
        for number, (_, rows, seconds) in enumerate(pool.imap(rows_of, wanted), 1):
            for one in rows:
                append(path, one)
            with (out / "seconds.jsonl").open("a") as file:
                file.write(json.dumps(seconds) + "\n")
            minutes, pairs = (time.perf_counter() - start) / 60, pairs + (len(rows) > 1)
            if number % 10 == 0 or number == len(wanted):
                left = minutes / number * (len(wanted) - number)
                print(f"{number} of {len(wanted)} seeds, {pairs / minutes:.0f} pairs a minute, {left:.0f} minutes left", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, metavar="A:B", help="from A to below B")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("runs/population"))
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    run(range(first, last), options.processes, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
