"""What a rank's end of a window costs where there are many: ``python -m tests.benchmarks.ranks``.

What is sent is of a fixed size (a maximum and two sums), so that rank 0 of 1 024 does what rank 0 of 2 does. The
network's part of a collective is not in it.
"""

from __future__ import annotations

import time

from lightning_hooks.statistics.reduction import Span, TableIndex, over_ranks
from lightning_hooks.statistics.rows import N_COLUMNS, Column, empty_table


def measure(modules: int, ranks: int) -> dict[str, float]:
    """Collectives, megabytes sent and the time of a rank's own part, for the table of the outputs of so many modules."""
    spans, table, sent = (Span(modules * N_COLUMNS, Column.merge()),), empty_table(modules).reshape(-1), []
    times = []
    for _ in range(5):
        sent.clear()
        began = time.perf_counter()
        over_ranks([(spans, table)], TableIndex(0, ranks), lambda tensor, _: sent.append(tensor.numel() * tensor.element_size()))
        times.append(time.perf_counter() - began)
    return {"collectives": len(sent), "MB": sum(sent) / 1e6, "ms": 1e3 * min(times)}


def main() -> None:
    """Print the table."""
    print("| modules | ranks | collectives | MB sent | ms of rank 0 |\n|---|---|---|---|---|")
    for modules in (100, 1_000, 10_000):
        for ranks in (2, 64, 1_024, 4_096):
            found = measure(modules, ranks)
            print(f"| {modules} | {ranks} | {found['collectives']} | {found['MB']:.2f} | {found['ms']:.1f} |")


if __name__ == "__main__":
    main()
