"""The loss in the report, against the losses that ``training_step`` kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lightning_hooks import GradientFlowMonitor
from lightning_hooks.statistics.loss import LossTable, loss_row, loss_stats
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.trainings import amp


def fit(model: Classifier, **kwargs: Any) -> Any:
    monitor = GradientFlowMonitor(every_n_steps=3, summary=False)
    trainer([monitor], **kwargs).fit(model, loader(n=600))  # 75 batches: more than are kept at a time
    return monitor.report.loss


@pytest.mark.parametrize("case", ["plain", "accumulated", "scaled"])
def test_the_loss_of_every_batch_is_recorded_as_training_step_gave_it(case: str) -> None:
    torch.manual_seed(0)
    kwargs: dict[str, Any] = {"plain": {}, "accumulated": {"accumulate_grad_batches": 4}, "scaled": {"plugins": amp(1024.0)}}[case]
    model = Classifier(mlp())
    stats = fit(model, **kwargs)
    slope, start = np.polyfit(np.arange(75), model.losses, 1)
    rel = 1e-2 if case == "scaled" else 1e-5
    assert (stats.count, stats.nonfinite) == (75, 0)
    assert stats.mean == pytest.approx(np.mean(model.losses), rel=rel)
    assert stats.start == pytest.approx(start, rel=rel)
    assert stats.end == pytest.approx(start + 74 * slope, rel=rel)


class SometimesNan(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * (math.nan if batch_idx == 20 else 1.0)


def test_a_loss_that_is_not_finite_is_counted() -> None:
    model = SometimesNan(mlp(), lr=0.0)
    stats = fit(model)
    assert (stats.count, stats.nonfinite) == (20, 55)  # the weights are lost from there on
    assert stats.mean == pytest.approx(np.mean(model.losses[:20]), rel=1e-5)


def test_rows_add_up() -> None:
    losses, batches = torch.rand(20, dtype=torch.float64), torch.arange(20, dtype=torch.float64)
    table = LossTable()
    for loss, batch in zip(losses, batches.long().tolist(), strict=True):
        table.add(loss, batch)
    whole = loss_row(losses, batches)
    torch.testing.assert_close(table.pack(), whole)
    torch.testing.assert_close(loss_row(losses[:7], batches[:7]) + loss_row(losses[7:], batches[7:]), whole)
    again = LossTable()
    again.unpack(table.pack())
    again.add(torch.tensor(3.0), 20)
    assert loss_stats(again.pack().tolist(), 21).count == 21  # type: ignore[union-attr]
    table.reset()
    assert loss_stats(table.pack().tolist(), 20) is None
