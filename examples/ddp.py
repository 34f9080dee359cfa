"""Train in two processes on the CPU (DDP over gloo): both report the statistics of all data.

    python examples/ddp.py

Lightning starts the second process. One process trains on the thin digits, the other on the bold ones, so that their
statistics differ. At the end of each epoch the monitors merge the tables of both processes. The standard deviation below is
that of all outputs together, not the mean of two. OwnHalf keeps the outputs of one process, to check this.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HookedCallback, monitors

BATCH = 32
SITE = "net.4"


class DigitsNet(LightningModule):
    """Three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        return cross_entropy(self.net(images), digits)

    def train_dataloader(self) -> DataLoader:
        images, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
        own = images.sum(1).argsort().chunk(self.trainer.world_size)[self.trainer.global_rank]  # by how much ink they have
        data = TensorDataset(images[own].float() / 16, digits[own])
        # Every process must take the same number of steps, or one would wait forever: no short last batch.
        return DataLoader(data, BATCH, shuffle=True, drop_last=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=3e-3)


class OwnHalf(HookedCallback):
    """Keeps the outputs of a module for this process's half of the data in the last epoch, which a monitor never does."""

    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.outputs: list[Tensor] = []
        for name, module in self.select(pl_module):
            self.listen(name, module, self.keep)

    def keep(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        self.outputs.append(output.detach().clone())

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.outputs = []


def gathered(value: object) -> list:
    """A value of every process, in the order of their ranks."""
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Two processes on the CPU with lightning_hooks on.")
    parser.add_argument("--fast", action="store_true", help="two epochs instead of ten, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/ddp"), help="where the logs go (default runs/ddp)")
    options = parser.parse_args()

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)

    trio = monitors(every_n_steps=1)
    own = OwnHalf(modules=SITE)
    trainer = Trainer(
        max_epochs=2 if options.fast else 10,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        use_distributed_sampler=False,  # train_dataloader gives each process its half
        callbacks=[*trio, own],
        logger=[CSVLogger(options.log_dir, name=""), TensorBoardLogger(options.log_dir, name="", version=0)],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=10,
    )
    start = time.perf_counter()
    trainer.fit(DigitsNet())

    reports = gathered(
        [dataclasses.replace(monitor.report, overhead=None) for monitor in trio if monitor.report]
    )  # but for the time they took
    halves = gathered(torch.cat(own.outputs).double())
    reported, true = trio[0].report.sites[SITE].std, torch.cat(halves).std(correction=0).item()
    same = all(repr(report) == repr(reports[0]) for report in reports)
    if trainer.is_global_zero:
        alone = " and ".join(f"{half.std(correction=0):.4f}" for half in halves)
        print(f"\nStandard deviation at {SITE}: {alone} for the halves alone, {true:.4f} for all, reported {reported:.4f}.")
        print(f"Both processes report {'the same' if same else 'DIFFERENT NUMBERS'}. {time.perf_counter() - start:.1f} s.")
        print(f"Logs: {options.log_dir}. To look:\n    tensorboard --logdir {options.log_dir}")
    torch.distributed.destroy_process_group()
    return 0 if same and abs(reported / true - 1) < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
