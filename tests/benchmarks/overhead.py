"""What the trio costs: training steps with and without it and its peers, in turn, in one process; medians of paired ratios.

python -m tests.benchmarks.overhead [--workloads digits …] [--pairs 7] [--no-peers] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback
from torch.profiler import ProfilerActivity, profile

from lightning_hooks import monitors
from lightning_hooks.statistics.native import native
from lightning_hooks.trackers import table_lines
from tests.benchmarks.peers import FLOORS, PEERS
from tests.benchmarks.workloads import WORKLOADS, Task, Workload, batches

Variant = Callable[[], list[Any]]


class StepClock(Callback):
    """Seconds of each step from the third on, without the epoch's end. On CUDA by events, read at the end."""

    def __init__(self) -> None:
        self.marks: list[Any] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.num_training_batches - 1:
            self.on_train_batch_start(trainer, pl_module, batch, batch_idx)

    def seconds(self, period: int) -> float:
        """Mean seconds of a step, by the median of those at each place in the sampling's period: outliers do not count."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            steps = [a.elapsed_time(b) / 1e3 for a, b in zip(self.marks, self.marks[1:], strict=False)]
        else:
            steps = [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]
        sampled = [step for index, step in enumerate(steps) if index > 2 and index % period == 0]
        others = [step for index, step in enumerate(steps) if index > 2 and index % period]
        if not others:
            return statistics.median(sampled)
        return (statistics.median(sampled) + (period - 1) * statistics.median(others)) / period


def step_seconds(task: Task, loader: Any, workload: Workload, callbacks: list[Any], period: int) -> float:
    clock = StepClock()
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="gpu" if workload.cuda else "cpu",
        devices=1,
        precision=workload.precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=[clock, *callbacks],  # first, so that what the others do at a batch's start counts
    )
    gc.collect()
    gc.disable()
    try:
        trainer.fit(task, loader)
    finally:
        gc.enable()
    return clock.seconds(period)


def counts(task: Task, workload: Workload, callbacks: Callable[[], list[Any]]) -> tuple[float, float]:
    """Per step: how often the host waits for a number, and how many kernels are launched (on the CPU: operations)."""
    few, many = (_counted(task, workload, callbacks, steps) for steps in (20, 40))
    return (many[0] - few[0]) / 20, (many[1] - few[1]) / 20  # so that an epoch's start and end do not count


def _counted(task: Task, workload: Workload, callbacks: Callable[[], list[Any]], steps: int) -> tuple[int, int]:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if workload.cuda else [])]
    with profile(activities=activities, acc_events=True) as seen:
        step_seconds(task, batches(workload.batch, workload.batch_size, steps), workload, callbacks(), 1)
    found = {event.key: event.count for event in seen.key_averages()}
    launched = [count for key, count in found.items() if key.startswith("cudaLaunchKernel" if workload.cuda else "aten::")]
    return found.get("aten::_local_scalar_dense", 0), sum(launched)


def variants(peers: bool) -> dict[str, tuple[Variant, int]]:
    """By name: the callbacks, and the period in which their steps differ."""
    found: dict[str, tuple[Variant, int]] = {
        "trio, every step": (lambda: monitors(every_n_steps=1, summary=False), 1),
        "trio, default": (lambda: monitors(summary=False), 10),
    }
    for name, kind in {**FLOORS, **(PEERS if peers else {})}.items():
        found[name] = (lambda kind=kind: [kind()], 1)
    return found


def measure(name: str, pairs: int, peers: bool) -> dict[str, Any]:
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    task, loader = Task(workload.build()), batches(workload.batch, workload.batch_size, workload.steps)
    every = variants(peers)
    for make, period in ((list, 1), *every.values()):  # each once, unmeasured
        step_seconds(task, loader, workload, make(), period)
    ratios: dict[str, list[float]] = {label: [] for label in every}
    plain: list[float] = []
    for _ in range(pairs):
        for label, (make, period) in every.items():
            off = step_seconds(task, loader, workload, [], period)
            on = step_seconds(task, loader, workload, make(), period)
            plain.append(off)
            ratios[label].append(on / off)
    nothing = counts(task, workload, list)
    counted = {label: counts(task, workload, make) for label, (make, _) in every.items()}
    result = {
        "workload": name,
        "step_ms": 1e3 * statistics.median(plain),
        "percent": {label: 100 * (statistics.median(values) - 1) for label, values in ratios.items()},
        "syncs": {label: count[0] - nothing[0] for label, count in counted.items()},
        "launches": {label: count[1] - nothing[1] for label, count in counted.items()},
        "quartiles": {label: [100 * (q - 1) for q in statistics.quantiles(values, n=4)[::2]] for label, values in ratios.items()},
    }
    print(f"\n{name}: {result['step_ms']:.2f} ms a step", flush=True)
    lines = [
        (
            label,
            f"{value:+.1f} %",
            "{:+.1f} … {:+.1f}".format(*result["quartiles"][label]),
            f"{result['syncs'][label]:.0f}",
            f"{result['launches'][label]:.0f}",
        )
        for label, value in result["percent"].items()
    ]
    print(
        "\n".join("  " + line for line in table_lines(("", "median", "quartiles", "syncs a step", "kernels a step"), lines)),
        flush=True,
    )
    return result


def machine() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "lightning": pl.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "compiled path": native() is not None,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), help="which; all that this machine can run by default")
    parser.add_argument("--pairs", type=int, default=7, help="how often each is run with and without")
    parser.add_argument("--no-peers", action="store_true", help="the trio and the floors only")
    parser.add_argument("--json", type=Path, help="write the results there")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(2)
    where = machine()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    names = arguments.workloads or [name for name, workload in WORKLOADS.items() if workload.cuda == torch.cuda.is_available()]
    results = []
    for name in names:
        results.append(measure(name, arguments.pairs, not arguments.no_peers))
        if arguments.json:
            arguments.json.write_text(json.dumps({"machine": where, "results": results}, indent=2))


if __name__ == "__main__":
    main()
