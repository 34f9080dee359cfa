"""What reading a large tensor costs: our summary over the floor (one ``sum``), and its share of the copy bandwidth.

python -m tests.benchmarks.kernels [--repeats 15] [--mb 1 4 16 64]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from lightning_hooks.statistics import empty_table
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.kernels.host import summarize_on_host
from lightning_hooks.statistics.rows import Clock
from lightning_hooks.trackers import table_lines

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def seconds(function: Callable[[], Any]) -> float:
    """Of one call; on CUDA by events."""
    if DEVICE == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def measure(megabytes: int, dtype: torch.dtype, repeats: int) -> tuple[Any, ...]:
    n = megabytes * 2**20 // torch.empty(0, dtype=dtype).element_size()
    values = torch.randn(n, device=DEVICE).to(dtype)
    target = torch.empty_like(values)
    table, clock = empty_table(1, DEVICE), Clock(DEVICE)
    ways: dict[str, Callable[[], Any]] = {
        "sum": lambda: values.sum(),
        "copy": lambda: target.copy_(values),
        "ours": lambda: kernels_for(DEVICE).record(table, 0, values, clock),
        "torch": (lambda: summarize_on_host(values)) if DEVICE == "cpu" else (lambda: torch.var_mean(values.float())),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():  # in turn
            way()
            times[name].append(seconds(way))
    over = statistics.median([ours / floor for ours, floor in zip(times["ours"], times["sum"], strict=True)])
    torchs = statistics.median([slow / floor for slow, floor in zip(times["torch"], times["sum"], strict=True)])
    # A copy reads and writes: reading alone at its bandwidth takes half the time.
    share = statistics.median([copy / 2 / ours for ours, copy in zip(times["ours"], times["copy"], strict=True)])
    return megabytes, str(dtype).removeprefix("torch."), 1e3 * statistics.median(times["ours"]), over, torchs, f"{share:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--mb", type=int, nargs="*", default=[1, 4, 16, 64])
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    rows = [measure(size, dtype, arguments.repeats) for dtype in (torch.float32, torch.bfloat16) for size in arguments.mb]
    header = ("MB", "dtype", "ours, ms", "ours / sum", "torch's kernels / sum", "of copy bandwidth")
    print(f"{DEVICE}, torch {torch.__version__}")
    print("\n".join(table_lines(header, rows)))


if __name__ == "__main__":
    main()
