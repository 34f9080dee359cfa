"""The residual stream of a training in two DDP processes and in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from lightning_hooks import FeatureStatsMonitor
from lightning_hooks.diagnostics.reports import FeatureReport
from tests.support.models import Classifier, loader, trainer
from tests.support.stacks import Stack


class Half(Sampler[list[int]]):
    """Every batch's half of this rank; the whole batches in one process."""

    def __init__(self, world: int, rank: int) -> None:
        self.world, self.rank = world, rank

    def __iter__(self) -> Any:
        for start in range(0, 48, 8):
            yield list(range(start, start + 8))[self.rank :: self.world]

    def __len__(self) -> int:
        return 6


def fit(world: int, rank: int) -> FeatureReport:
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(every_n_steps=2, summary=False)
    kwargs: dict[str, Any] = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False} if world == 2 else {}
    data = DataLoader(loader((5, 6), n=48).dataset, batch_sampler=Half(world, rank))
    trainer([monitor], **kwargs).fit(Classifier(Stack()), data)
    return monitor.report


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {"report": fit(2, rank)}
