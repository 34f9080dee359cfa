"""How batches and modules are set up in two DDP processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import GradientFlowMonitor
from tests.support.models import Classifier, loader, trainer


class OneRankOnly(Classifier):
    """On rank 1 its dropout is in training mode and modules in a list have gradients; there the third batch has no labels."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Dropout(0.2), nn.Linear(8, 3)))
        self.net[2].eval()
        self.blocks = [nn.Linear(8, 8)]
        self.loss = nn.CrossEntropyLoss(reduction="sum")
        self.taken = 0

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        self.taken += 1
        return (x, torch.full_like(y, -100)) if self.global_rank == 1 and self.taken % 4 == 3 else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = self.global_rank == 1
        self.net[1].train(first)
        x, y = batch
        x = self.blocks[0](x) if first else x
        return self.loss(self.net(x), y)


def sampled(model: Classifier, data: Any, **kwargs: Any) -> Any:
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([monitor], strategy="ddp", devices=2, **kwargs).fit(model, data)
    return monitor.report


def same(distributed: bool) -> Any:
    torch.manual_seed(0)
    return sampled(Classifier(nn.Linear(8, 3)), loader(n=64), use_distributed_sampler=distributed)


def one_batch() -> Any:
    """A tiny data set that each rank goes through many times."""
    torch.manual_seed(0)
    return sampled(Classifier(nn.Linear(8, 3)), DataLoader([*loader()][:1] * 6, batch_size=None), use_distributed_sampler=False)  # type: ignore[arg-type]


def apart() -> Any:
    return sampled(OneRankOnly(), loader(n=64))


CASES = {"same": lambda: same(False), "distributed": lambda: same(True), "one_batch": one_batch, "apart": apart}


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {name: case() for name, case in CASES.items()}
