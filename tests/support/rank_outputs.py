"""What a model puts out in two DDP processes. Rank 1 alone calls a second loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureStatsMonitor
from tests.support.models import Classifier, trainer


class Net(nn.Module):
    """Drops whatever its mode; keeps what its first layer puts out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 5)
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if torch.is_grad_enabled():
            self.kept.append(h.detach().clone())
        return self.head(F.dropout(h, 0.25))


class TwoLosses(Classifier):
    """The second loss is called by rank 1 alone, before the first."""

    def __init__(self) -> None:
        super().__init__(Net())
        self.criterion = nn.CrossEntropyLoss(ignore_index=2)  # a module: its name is the same on both ranks
        self.given: list[tuple[Tensor, Tensor]] = []
        self.second: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        extra = torch.zeros(())
        if self.global_rank:
            extra = 0.1 * F.cross_entropy(logits[:, :4], y % 4)
            self.second.append((logits[:, :4].detach().clone(), y % 4))
        loss = self.criterion(logits, y)
        self.given.append((logits.detach().clone(), y))
        return loss + extra


def found(rank: int, folder: Path) -> dict[str, Any]:
    """Two ranks, each with batches of its own."""
    torch.manual_seed(0)
    model, monitor = TwoLosses(), FeatureStatsMonitor(every_n_steps=1, summary=False)
    generator = torch.Generator().manual_seed(5 + rank)
    data = TensorDataset(torch.randn((24, 8), generator=generator), torch.randint(5, (24,), generator=generator))
    run = trainer([monitor], strategy="ddp", devices=2, use_distributed_sampler=False)
    run.fit(model, DataLoader(data, batch_size=6), DataLoader(data, batch_size=6))
    return {"report": monitor.report, "given": model.given, "second": model.second, "kept": model.net.kept}
