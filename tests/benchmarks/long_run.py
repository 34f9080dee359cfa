"""A long run with one endless epoch: memory, the size of its files, the time of a step and of a window's end must not grow.

``python -m tests.benchmarks.long_run [--steps 100000] [--window 20]`` prints a line for each tenth of the run.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_hooks import TrainingMonitor


class Stream(IterableDataset[Any]):
    """Batches without an end."""

    def __iter__(self) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(8, 16, generator=generator)


class Regression(LightningModule):
    """A small net."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return (self.net(batch) - batch[:, :1]).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), 1e-4)


class MonitorScope(TrainingMonitor):
    """Prints how the run goes."""

    def __init__(self, steps: int, folder: Path, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tenth, self.folder, self.ends = steps // 10, folder, [0.0]
        self.began = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        known = (member.window_end_seconds for member in self.members)
        self.ends.append(sum(seconds for seconds in known if seconds == seconds))  # it is NaN before the first window
        if (batch_idx + 1) % self.tenth == 0:
            size = sum(file.stat().st_size for file in self.folder.glob("**/lightning_hooks/*"))
            memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
            end = statistics.median(self.ends)
            held = f"{memory / 1e6:7.1f} MB resident, files {size / 1e6:6.2f} MB"
            now = time.perf_counter()
            step = (now - self.began) / self.tenth
            print(f"{batch_idx + 1:>8} steps: {held}, step {step * 1e3:.2f} ms, of it window's end {end * 1e3:.2f} ms", flush=True)
            self.ends.clear()
            self.began = now


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        monitor = MonitorScope(options.steps, Path(folder), report_every_n_steps=options.window)
        trainer = Trainer(
            max_steps=options.steps,
            max_epochs=None,
            accelerator="cpu",
            callbacks=[monitor],
            logger=CSVLogger(folder, flush_logs_every_n_steps=10**9),
            log_every_n_steps=10**9,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        began = time.perf_counter()
        trainer.fit(Regression(), DataLoader(Stream(), batch_size=None))
        print(f"{time.perf_counter() - began:.0f} s in all, {options.steps // options.window} windows")


if __name__ == "__main__":
    main()
