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
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback
from torch.profiler import ProfilerActivity, profile

from lightning_hooks import kernels, monitors
from lightning_hooks.trackers import table_lines
from tests.benchmarks.peers import FLOORS, PEERS
from tests.benchmarks.workloads import WORKLOADS, Task, Workload, batches

Variant = Callable[[], list[Any]]

WARM_UP = 2
"""Steps of a block that do not count."""


class Blocks(Callback):
    """Runs blocks of steps with other callbacks in turn, in one fit, and keeps each step's seconds. The last callback.

    Args:
        plan: Of each block: what it is called, the callbacks, and how many steps it has.
    """

    def __init__(self, plan: list[tuple[str, Variant, int]]) -> None:
        self.plan = plan
        self.steps = sum(steps for _, _, steps in plan)
        self.seconds: list[tuple[str, list[tuple[int, float]]]] = []  # of each block: (batch, seconds)
        self.block, self.left = 0, 0
        self.marks: list[tuple[int, Any]] = []
        self.on: list[Any] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.others = [each for each in trainer.callbacks if each is not self]
        self._enter(trainer, pl_module)

    def _enter(self, trainer: Any, pl_module: Any) -> None:
        _, make, self.left = self.plan[self.block]
        self.on = make()
        trainer.callbacks = [*self.others, *self.on, self]
        for callback in self.on:
            callback.on_train_start(trainer, pl_module)
        for callback in self._present(trainer):
            callback.on_train_epoch_start(trainer, pl_module)

    def _leave(self, trainer: Any, pl_module: Any) -> None:
        present = self._present(trainer)
        for callback in present:
            callback.on_train_end(trainer, pl_module)
        for callback in present:
            callback.teardown(trainer, pl_module, "fit")
        self.on = []
        trainer.callbacks = [*self.others, self]

    def _present(self, trainer: Any) -> list[Any]:
        """The callbacks of the block, and what they have added to the trainer's."""
        known = {id(each) for each in (*self.others, self)}
        return [each for each in trainer.callbacks if id(each) not in known]

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if torch.cuda.is_available():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append((batch_idx, event))
        else:
            self.marks.append((batch_idx, time.process_time()))  # CPU time: a noisy machine disturbs it less

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        if self.left:
            return
        self.on_train_batch_start(trainer, pl_module, batch, batch_idx + 1)
        self.seconds.append((self.plan[self.block][0], self._steps()))
        self.marks.clear()
        self._leave(trainer, pl_module)
        self.block += 1
        if self.block < len(self.plan):
            self._enter(trainer, pl_module)
            gc.collect()

    def _steps(self) -> list[tuple[int, float]]:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            return [(batch, begin.elapsed_time(end) / 1e3) for (batch, begin), (_, end) in pairwise(self.marks)]
        return [(batch, end - begin) for (batch, begin), (_, end) in pairwise(self.marks)]


def mean_step(steps: list[tuple[int, float]], period: int) -> float:
    """Mean seconds of a step, by the median of those at each place in the sampling's period: outliers do not count."""
    steps = steps[WARM_UP:]
    sampled = [seconds for batch, seconds in steps if batch % period == 0]
    others = [seconds for batch, seconds in steps if batch % period]
    if not others:
        return statistics.median(sampled)
    return (statistics.median(sampled) + (period - 1) * statistics.median(others)) / period


def fit(task: Task, workload: Workload, callbacks: list[Any], steps: int) -> None:
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
        callbacks=callbacks,
    )
    if workload.compiled:  # a graph is made for the hooks that are there
        torch.compiler.reset()
    gc.collect()
    gc.disable()
    try:
        trainer.fit(task, batches(workload.batch, workload.batch_size, steps))
    finally:
        gc.enable()


def in_turn(
    task: Task, workload: Workload, every: dict[str, tuple[Variant, int]], pairs: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of a step without and with each: blocks of steps off, on, off, on, ..., of one fit where hooks may come and go."""
    found: dict[str, list[tuple[float, float]]] = {label: [] for label in every}
    plan: list[tuple[str, Variant, int]] = [("", list, 10)]  # the first steps of all
    for _ in range(pairs):
        for label, (make, period) in every.items():
            plan.append(("off", list, WARM_UP + workload.block))
            plan.append((label, make, WARM_UP + max(period, workload.block)))
    # A compiled model is compiled again for its hooks: each block is a fit of its own.
    fits = [Blocks([block]) for block in plan] if workload.compiled else [Blocks(plan)]
    for blocks in fits:
        fit(task, workload, [blocks], blocks.steps)
    seconds = [block for blocks in fits for block in blocks.seconds][1:]
    for (_, off), (label, on) in zip(seconds[::2], seconds[1::2], strict=True):
        found[label].append((mean_step(off, 1), mean_step(on, every[label][1])))
    return found


def counts(task: Task, workload: Workload, callbacks: Callable[[], list[Any]]) -> tuple[float, float]:
    """Per step: how often the host waits for a number, and how many kernels are launched (on the CPU: operations)."""
    few, many = (_counted(task, workload, callbacks, steps) for steps in (20, 40))
    return (many[0] - few[0]) / 20, (many[1] - few[1]) / 20  # so that an epoch's start and end do not count


def _counted(task: Task, workload: Workload, callbacks: Callable[[], list[Any]], steps: int) -> tuple[int, int]:
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if workload.cuda else [])]
    with profile(activities=activities, acc_events=True) as seen:
        fit(task, workload, callbacks(), steps)
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
    task, every = Task(workload.build()), variants(peers)
    seconds = in_turn(task, workload, every, pairs)
    plain = [off for found in seconds.values() for off, _ in found]
    ratios = {label: [on / off for off, on in found] for label, found in seconds.items()}
    result: dict[str, Any] = {
        "workload": name,
        "step_ms": 1e3 * statistics.median(plain),
        "percent": {label: 100 * (statistics.median(values) - 1) for label, values in ratios.items()},
        "quartiles": {label: [100 * (q - 1) for q in statistics.quantiles(values, n=4)[::2]] for label, values in ratios.items()},
    }
    print(f"\n{name}: {result['step_ms']:.2f} ms a step", flush=True)
    rows = [
        (label, f"{value:+.1f} %", "{:+.1f} … {:+.1f}".format(*result["quartiles"][label]))
        for label, value in result["percent"].items()
    ]
    show(("", "median", "quartiles"), rows)
    nothing = counts(task, workload, list)
    own = [label for label in every if workload.block > 9 or label.startswith("trio")]  # the others take too long to count
    counted = {label: counts(task, workload, every[label][0]) for label in own}
    result["syncs"] = {label: count[0] - nothing[0] for label, count in counted.items()}
    result["launches"] = {label: count[1] - nothing[1] for label, count in counted.items()}
    show(
        ("", "syncs a step", "kernels a step"),
        [(label, f"{result['syncs'][label]:.0f}", f"{result['launches'][label]:.0f}") for label in own],
    )
    return result


def show(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> None:
    print("\n".join("  " + line for line in table_lines(header, lines)), flush=True)


def machine() -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "lightning": pl.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "kernels": kernels()["cpu"],
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
    torch.set_num_threads(1)
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
