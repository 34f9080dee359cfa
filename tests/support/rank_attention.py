"""What AttentionMonitor reports of two DDP processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import AttentionMonitor
from tests.support.attention import Transformer
from tests.support.models import Classifier, trainer

NAMES = ("causal/sdpa", "padded/sdpa", "eager/softmax")


class OneRankOnly(Transformer):
    """The second rank calls a softmax more, before its layers."""

    def __init__(self, rank: int) -> None:
        super().__init__(NAMES)
        self.rank = rank
        self.extra: list[tuple[Tensor, Tensor | None]] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.rank == 1:
            logits = torch.einsum("bqd,bkd->bqk", x, x)[:, None]
            self.extra.append((logits.double(), None))
            F.softmax(logits, -1)
        return super().forward(x)


def fit(rank: int, net: Transformer) -> Any:
    data = TensorDataset(torch.randn(24, 8, 16, generator=torch.Generator().manual_seed(rank)), torch.zeros(24, dtype=torch.int64))
    monitor = AttentionMonitor(every_n_steps=1, summary=False)
    options: dict[str, Any] = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False}
    trainer([monitor], **options).fit(Classifier(net, lr=0.01), DataLoader(data, batch_size=4))
    return monitor.report, {**net.kept, "net": getattr(net, "extra", [])}


def found(rank: int, folder: Path) -> dict[str, Any]:
    torch.manual_seed(3)
    return {"alike": fit(rank, Transformer(NAMES)), "one_rank_only": fit(rank, OneRankOnly(rank))}
