"""Functions that two DDP processes call alike, in another order, or not both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import FeatureStatsMonitor
from tests.support.models import Classifier, trainer

CASES = ("alike", "order", "late")


class Net(nn.Module):
    """Calls two functions; in another order on rank 1 where ``case`` says so, or one of them only there, from some batch on."""

    def __init__(self, case: str, rank: int) -> None:
        super().__init__()
        self.case, self.rank, self.batches = case, rank, 0
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        one, other = self.first(x), self.second(x)
        if self.case == "order" and self.rank == 1:
            other, one = torch.tanh(other), F.relu(one)
        else:
            one = F.relu(one)
            other = torch.tanh(other) if self.case != "late" or (self.rank == 1 and self.batches > 2) else other
        return self.last(one + other)


def shards(rank: int, world: int) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(6, 8, 8, generator=generator), torch.randint(0, 3, (6, 8), generator=generator)
    part = slice(4 * rank, 4 * rank + 4) if world == 2 else slice(None)
    return [(x[step, part], y[step, part]) for step in range(len(x))]


def run_case(case: str, world: int, rank: int = 0) -> list[Any]:
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=1, report_every_n_steps=3, summary=False)
    kwargs: dict[str, Any] = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False} if world == 2 else {}
    model = Classifier(Net(case, rank), lr=0.0)
    trainer([monitor], **kwargs).fit(model, DataLoader(shards(rank, world), batch_size=None))  # type: ignore[arg-type]
    return [*monitor.history, monitor.report]


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {case: run_case(case, world=2, rank=rank) for case in CASES}
