"""Targets of losses that learn."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor
from tests.support.models import loader, mlp, trainer


class Taught(pl.LightningModule):
    """A student and a teacher that an optimizer may hold."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.student, self.teacher, self.head = kind, mlp(), mlp(), nn.Linear(3, 3)
        self.centres = nn.Embedding(3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        told, soft = self.student(batch[0]), self.teacher(batch[0])
        if self.kind == "kl_div":
            return F.kl_div(told.log_softmax(1), soft.softmax(1), reduction="batchmean")
        if self.kind == "detached":
            return F.mse_loss(told, soft.detach())
        if self.kind == "turned":
            return F.mse_loss(soft.detach(), told)
        if self.kind == "own loss":
            return F.mse_loss(told, soft) + F.cross_entropy(self.head(soft), batch[1])
        if self.kind == "own copy":
            return F.mse_loss(told, self.student(batch[0] + 1))
        if self.kind == "centres":
            return F.mse_loss(told, self.centres(batch[1])) + F.cross_entropy(told, batch[1])
        return F.smooth_l1_loss(told, soft)

    def configure_optimizers(self) -> Any:
        held = self.student if self.kind == "not held" else self
        return torch.optim.SGD(held.parameters(), 0.01)


@pytest.mark.parametrize(
    ("kind", "site"),
    [
        *(("kl_div", "teacher.0"), ("smooth_l1_loss", "teacher.0")),
        *((kind, "") for kind in ("detached", "turned", "own loss", "own copy", "centres", "not held")),
    ],
)
def test_a_target_that_learns(kind: str, site: str) -> None:
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([FeatureStatsMonitor(every_n_steps=1, summary=False), monitor]).fit(Taught(kind), loader(n=32))
    assert monitor.report.target_layer == site
    found = [(alert.kind, alert.site) for alert in monitor.report.alerts if alert.kind == "output_range"]
    assert found == ([("output_range", site)] if site else [])
