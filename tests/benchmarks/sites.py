"""What a tiny tensor costs, in sampled and unsampled steps, by the number of sites; and the memory kept for each.

python -m tests.benchmarks.sites [--sites 100 1000 5000] [--repeats 3]
"""

from __future__ import annotations

import argparse
import logging
import time
import tracemalloc
import warnings
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
    """Bytes of Python memory and of tables that the trio holds after some steps, over those of a run without it."""
    _held_bytes(10, 4, [])  # what is imported and cached at the first run is nobody's
    return _held_bytes(layers, steps, monitors(every_n_steps=1, summary=False)) - _held_bytes(layers, steps, [])


def _held_bytes(layers: int, steps: int, trio: list[Any]) -> int:

    class Weigh(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            tracemalloc.start()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == steps - 1:
                python = tracemalloc.get_traced_memory()[0]
                tables: list[torch.Tensor] = []
                if trio:
                    features, flow, clip = (each.member.collector for each in trio[:3])
                    table, gradients, ledger = features.table, flow.modules, clip.ledgers[0]
                    tables += [table.rows, *table.fired.values(), gradients.rows, flow.parameters.rows]
                    tables += [*ledger._before, *ledger._after, ledger._total]
                self.bytes = python + sum(table.numel() * table.element_size() for table in tables)
                tracemalloc.stop()

    weigh = Weigh()
    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[weigh, *trio],
    ).fit(Task(ManyLayers(layers)), batches(lambda: torch.randn(4, 32), 4, steps))
    return int(weigh.bytes)


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
        places = 4 * 1001  # of each layer: its output, its gradient, a weight and a bias
        print(
            f"kept for {places} tensors of 1000 layers: {few / places:.0f} bytes each after 8 steps, {many / places:.0f} after 40"
        )


if __name__ == "__main__":
    main()
