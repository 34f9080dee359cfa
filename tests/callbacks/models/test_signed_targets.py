"""Losses of pairs and signs that are given targets of 0."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch.nn import functional as F

from lightning_hooks import FeatureStatsMonitor
from lightning_hooks.diagnostics.loss_inputs.targets import SIGNS
from tests.support.models import loader, trainer


@pytest.mark.parametrize(
    ("loss", "given"),
    [
        (F.cosine_embedding_loss, (torch.randn(4, 3), torch.randn(4, 3))),
        (F.margin_ranking_loss, (torch.randn(4), torch.randn(4))),
        (F.hinge_embedding_loss, (torch.randn(4),)),
        (F.soft_margin_loss, (torch.randn(4),)),
    ],
)
def test_targets_of_0_where_signs_are_expected(loss: Any, given: tuple[torch.Tensor, ...]) -> None:
    class Pairs(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return loss(self.net.weight.sum() * given[0], *given[1:], torch.tensor([0.0, 1.0, 1.0, -1.0]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    monitor = FeatureStatsMonitor(every_n_steps=1, functional=True)
    trainer([monitor], max_epochs=1, limit_train_batches=2).fit(Pairs(), loader())
    (stats,) = monitor.report.targets.values()
    assert (stats.calls, stats.bounded, stats.outside, stats.bound) == (2, 8, 2, SIGNS)
