"""What the trio costs: training steps with and without it, in turn, in one process; medians of paired ratios.

python -m tests.benchmarks.overhead [--pairs 7] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback

from lightning_hooks import monitors
from lightning_hooks.trackers import table_lines
from tests.benchmarks.workloads import WORKLOADS, Task, batches


class StepClock(Callback):
    """Seconds a step takes, from the third on, the epoch's end left out (it is told apart)."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.start = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.num_training_batches - 1:
            self.seconds = (time.perf_counter() - self.start) / (batch_idx - 1)


def step_seconds(task: Task, loader: Any, callbacks: list[Any]) -> float:
    clock = StepClock()
    pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        callbacks=[*callbacks, clock],
    ).fit(task, loader)
    return clock.seconds


def measure(name: str, pairs: int) -> dict[str, Any]:
    build, make, batch_size, steps = WORKLOADS[name]
    torch.manual_seed(0)
    task, loader = Task(build()), batches(make, batch_size, steps)
    step_seconds(task, loader, [])
    plain, ratios = [], {"every step": [], "default": []}
    for _ in range(pairs):
        for label, every in (("every step", 1), ("default", 10)):
            off = step_seconds(task, loader, [])
            on = step_seconds(task, loader, monitors(every_n_steps=every, summary=False))
            plain.append(off)
            ratios[label].append(on / off)
    return {
        "workload": name,
        "ms a step": 1e3 * statistics.median(plain),
        **{f"{label} (%)": 100 * (statistics.median(values) - 1) for label, values in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7, help="how often each is run with and without")
    parser.add_argument("--json", type=Path, help="write the results there")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(2)
    rows = [measure(name, arguments.pairs) for name in WORKLOADS]
    print(f"torch {torch.__version__}, lightning {pl.__version__}, {torch.get_num_threads()} threads")
    print("\n".join(table_lines(list(rows[0]), [list(row.values()) for row in rows])))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
