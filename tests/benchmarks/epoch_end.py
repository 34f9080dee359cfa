"""What an epoch's end costs with the trio on: seconds and bytes, by number of sites and by logger.

python -m tests.benchmarks.epoch_end [--sites 100 1000 5000] [--loggers none tensorboard csv tensorboard+csv wandb mlflow]
    [--histograms no yes] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch import Callback, loggers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import monitors
from lightning_hooks.trackers import table_lines
from tests.benchmarks.peers import TensorBoardHistograms

EPOCHS = 6


class Deep(nn.Module):
    """As many leaves as asked for, a linear layer and a rectifier in turn; each runs on the same input."""

    def __init__(self, n_sites: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) if index % 2 == 0 else nn.ReLU() for index in range(n_sites))

    def forward(self, x: Tensor) -> Tensor:
        total = x
        for block in self.blocks:
            total = total + 0.01 * block(x)
        return total


class Task(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class EpochEndClock(Callback):
    """Seconds of the monitors' epoch ends, and of training's; stands before the first of them and after the last.

    Wall time, and CPU time of the process, which is less noisy on a shared machine.
    """

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.cpu: list[float] = []
        self.ended = 0.0

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.ended = time.perf_counter()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.marks.append(time.perf_counter())
        self.cpu.append(time.process_time())


def logger_of(kind: str, folder: Path) -> Any:
    if kind == "none":
        return False
    if "+" in kind:
        return [logger_of(part, folder / part) for part in kind.split("+")]
    if kind == "tensorboard":
        return loggers.TensorBoardLogger(folder)
    if kind == "csv":
        return loggers.CSVLogger(folder)
    if kind == "wandb":
        return loggers.WandbLogger(save_dir=folder, offline=True)
    return loggers.MLFlowLogger(tracking_uri=f"sqlite:///{folder}/mlflow.db", artifact_location=str(folder / "artifacts"))


def measure(n_sites: int, kind: str, peer: bool = False, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    measured = [TensorBoardHistograms()] if peer else monitors(every_n_steps=1, summary=False, **options)
    before, after = EpochEndClock(), EpochEndClock()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        trainer = pl.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            logger=logger_of(kind, folder),
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=1.0,
            callbacks=[before, *measured, after],
        )
        trainer.fit(Task(Deep(n_sites)), DataLoader([torch.randn(8, 4)] * 2, batch_size=None))
        if kind == "wandb":
            trainer.logger.experiment.finish()
        files = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        reports = sum(size for path, size in files.items() if "lightning_hooks" in path.parts)
    seconds = [end - start for start, end in zip(before.marks, after.marks, strict=True)]
    cpu = [end - start for start, end in zip(before.cpu, after.cpu, strict=True)]
    return {
        "sites": n_sites,
        "logger": "TensorBoard histograms, without us" if peer else kind,
        "histograms": "yes" if options.get("histograms") else "no",
        "first epoch, s": seconds[0],
        "later epochs, s": statistics.median(seconds[1:]),
        "of CPU, first": cpu[0],
        "later": statistics.median(cpu[1:]),
        "end of training, s": after.ended - before.ended,
        "kB an epoch": (sum(files.values()) - reports) / EPOCHS / 1000,
        "reports, kB an epoch": reports / EPOCHS / 1000,
        "tags": len(trainer.callback_metrics),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--loggers", nargs="+", default=["none", "tensorboard", "csv", "tensorboard+csv"])
    parser.add_argument("--histograms", nargs="+", choices=["no", "yes"], default=["no", "yes"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    os.environ.update(WANDB_SILENT="true", WANDB_ERROR_REPORTING="false", WANDB_CONSOLE="off")
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    measured = []
    for n_sites in args.sites:
        for kind in args.loggers:
            for histograms in args.histograms:
                if kind == "none" and histograms == "yes":
                    continue
                with contextlib.redirect_stderr(None):
                    measured.append(measure(n_sites, kind, histograms=histograms == "yes"))
                print(json.dumps(measured[-1]), flush=True)
        if "tensorboard" in args.loggers:
            measured.append(measure(n_sites, "tensorboard", peer=True))
    header = tuple(measured[0])
    print("\n".join(table_lines(header, [[row[column] for column in header] for row in measured])))
    if args.json:
        args.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
