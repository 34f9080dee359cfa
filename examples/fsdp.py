"""Train in two processes on the CPU with the weights sharded between them (FSDP2 over gloo), with the monitors on.

    python examples/fsdp.py

Each process holds half of every weight and half of its gradient; the weights of a block are gathered while it runs. The output of a
module is whole, but only for the data of one process: FeatureStatsMonitor pools it over the processes as under DDP. The norm of a
gradient is that of all its shards, which takes one small sum over the processes for each sampled batch. OwnHalf and OwnShard keep
the values of one process, to check the results.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import math
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
import torch.distributed
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import HookedCallback, monitors

BATCH, WIDTH = 32, 64
SITE = "net.head"


class Transformer(nn.Module):
    """Reads a picture as eight tokens, its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(8, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.rows(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class DigitsModel(LightningModule):
    """The transformer, sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Transformer()

    def configure_model(self) -> None:
        """Shard each block by itself, and then what is left. Lightning calls this when the processes have found each other."""
        assert self.device_mesh is not None
        mesh = self.device_mesh["data_parallel"]
        for block in self.net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.net, mesh=mesh)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        loss = cross_entropy(self.net(images), digits)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


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


class OwnShard(Callback):
    """The norm of this process's shards of the gradient at each step of the last epoch, and that of the whole gradient."""

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.shards: list[float] = []
        self.whole: list[float] = []

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters()]
        for norms, parts in ((self.shards, [g.to_local() for g in gradients]), (self.whole, [g.full_tensor() for g in gradients])):
            norms.append(math.hypot(*(part.norm().item() for part in parts)))


def gathered(value: object) -> list:
    """A value of every process, in the order of their ranks."""
    found = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Sharded weights in two processes on the CPU, with lightning_hooks on.")
    parser.add_argument("--fast", action="store_true", help="one epoch instead of eight, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/fsdp"), help="where the logs go (default runs/fsdp)")
    options = parser.parse_args()

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)
    seed_everything(0, verbose=False)  # each process makes the same weights, and keeps its share of them
    images, digits = (torch.tensor(array) for array in load_digits(return_X_y=True))
    data = TensorDataset(images.float().view(-1, 8, 8) / 16, digits)
    model = DigitsModel()
    whole = sum(parameter.numel() for parameter in model.parameters())

    trio = monitors(every_n_steps=1)
    half, shard = OwnHalf(modules=SITE), OwnShard()
    trainer = Trainer(
        max_epochs=1 if options.fast else 8,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        callbacks=[*trio, half, shard],
        logger=[CSVLogger(options.log_dir, name=""), TensorBoardLogger(options.log_dir, name="", version=0)],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=10,
    )
    start = time.perf_counter()
    trainer.fit(model, DataLoader(data, BATCH, shuffle=True))

    held = gathered(sum(parameter.to_local().numel() for parameter in model.parameters()))  # type: ignore[attr-defined]
    reports = gathered(
        [dataclasses.replace(monitor.report, overhead=None) for monitor in trio if monitor.report]
    )  # but for the time they took
    halves, shards = gathered(torch.cat(half.outputs).double()), gathered(statistics.mean(shard.shards))
    features, flow = (monitor.report for monitor in trio[:2])
    std, true_std = features.sites[SITE].std, torch.cat(halves).std(correction=0).item()
    norm, true_norm = flow.total_norm, statistics.mean(shard.whole)
    same = all(repr(report) == repr(reports[0]) for report in reports)
    if trainer.is_global_zero:
        loss = trainer.callback_metrics["train_loss"].item()
        print(f"\nOf {whole} weights the processes hold {' and '.join(map(str, held))}. Loss {loss:.3f}.")
        alone = " and ".join(f"{part.std(correction=0):.4f}" for part in halves)
        print(f"Standard deviation at {SITE}: {alone} for the halves alone, {true_std:.4f} for all, reported {std:.4f}.")
        alone = " and ".join(f"{part:.4f}" for part in shards)
        print(f"Gradient norm: {alone} for the shards alone, {true_norm:.4f} for the whole, reported {norm:.4f}.")
        print(f"Both processes report {'the same' if same else 'DIFFERENT NUMBERS'}. {time.perf_counter() - start:.1f} s.")
        print(f"Logs: {options.log_dir}. To look:\n    tensorboard --logdir {options.log_dir}")
    torch.distributed.barrier()  # lets Gloo's threads release the tensors of the gathering before: at exit that would abort
    torch.distributed.destroy_process_group()
    return 0 if same and abs(std / true_std - 1) < 1e-5 and abs(norm / true_norm - 1) < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
