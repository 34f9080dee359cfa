"""What a tiny tensor costs, in sampled and unsampled steps, by the number of sites; and the memory kept for each.

python -m tests.benchmarks.sites [--sites 100 1000 5000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import gc
import logging
import time
import tracemalloc
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor, monitors
from lightning_hooks.trackers import table_lines
from tests.benchmarks.workloads import ManyLayers, Task, batches

STEPS = 24
EVERY = 6


class Halves(Callback):
    """Seconds of forward and backward together: where hooks run, and the rest of the step does not."""

    def __init__(self) -> None:
        self.steps: list[float] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.start = time.perf_counter()

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        self.steps.append(time.perf_counter() - self.start)


def fastest(layers: int, callbacks: list[Any]) -> tuple[float, float]:
    """The fastest sampled and the fastest other step, in seconds."""
    clock = Halves()
    torch.manual_seed(0)
    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[*callbacks, clock],
    ).fit(Task(ManyLayers(layers)), batches(lambda: torch.randn(4, 32), 4, STEPS))
    sampled = [step for index, step in enumerate(clock.steps) if index > 2 and index % EVERY == 0]
    others = [step for index, step in enumerate(clock.steps) if index > 2 and index % EVERY]
    return min(sampled), min(others)


def kept_bytes(layers: int, steps: int) -> int:
    """Bytes of Python memory and of tensors that the monitors hold after some steps, over those of a run without them."""
    _held_bytes(10, 4, list)  # what is imported and cached at the first run is nobody's
    return _held_bytes(layers, steps, lambda: monitors(every_n_steps=1, summary=False)) - _held_bytes(layers, steps, list)


class _Weigh(Callback):
    """Bytes held at the end of a step."""

    def __init__(self, at: int) -> None:
        self.at, self.bytes = at, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        tracemalloc.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.at:
            gc.collect()
            python = tracemalloc.get_traced_memory()[0]
            tensors = [each for each in gc.get_objects() if isinstance(each, torch.Tensor)]
            storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
            self.bytes = python + sum(storages.values())
            tracemalloc.stop()


def _held_bytes(layers: int, steps: int, make: Callable[[], list[Any]]) -> int:
    weigh = _Weigh(steps - 1)
    torch.manual_seed(0)
    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[weigh, *make()],
    ).fit(Task(ManyLayers(layers)), batches(lambda: torch.randn(4, 32), 4, steps))
    return weigh.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="*", default=[100, 1000, 5000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-memory", action="store_true")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    kinds = {
        "features": lambda: [FeatureStatsMonitor(every_n_steps=EVERY, summary=False)],
        "gradient flow": lambda: [GradientFlowMonitor(every_n_steps=EVERY, summary=False)],
        "trio": lambda: monitors(every_n_steps=EVERY, summary=False),
    }
    rows = []
    for sites in arguments.sites:
        best: dict[str, list[float]] = {}
        for _ in range(arguments.repeats):
            for name, make in {"": list, **kinds}.items():
                best.setdefault(name, [9e9, 9e9])
                best[name] = [min(pair) for pair in zip(best[name], fastest(sites, make()), strict=True)]
        for name in kinds:
            directions = 2 if name == "trio" else 1
            sampled, other = (1e6 * (on - off) / sites / directions for on, off in zip(best[name], best[""], strict=True))
            rows.append((sites, name, sampled, other))
    print("\n".join(table_lines(("sites", "monitors", "µs a tensor, sampled", "µs, not sampled"), rows)))
    if not arguments.no_memory:
        few, many = kept_bytes(1000, 8), kept_bytes(1000, 40)
        print(f"kept for each of 1001 layers: {few / 1001:.0f} bytes after 8 steps, {many / 1001:.0f} after 40")


if __name__ == "__main__":
    main()
