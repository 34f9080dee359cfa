"""What the run's record says of layers, losses and learning rates."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import monitors
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.training import layers, loss_by_epoch, rates_by_group
from tests.support.models import Classifier, loader, mlp, trainer


class Scheduled(Classifier):
    """Two groups of parameters, a learning rate that halves each epoch, and its losses by epoch."""

    def __init__(self) -> None:
        super().__init__(mlp())
        self.by_epoch: dict[int, list[float]] = {}

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.by_epoch.setdefault(self.current_epoch, []).append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        first, *rest = self.parameters()
        optimizer = torch.optim.SGD([{"params": [first]}, {"params": rest, "lr": 0.02}], lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]


def test_a_fit_records_layers_losses_and_learning_rates(tmp_path: Path) -> None:
    model = Scheduled()
    logger = CSVLogger(tmp_path, name="", version="run")
    trainer(monitors(summary=False), logger=logger, max_epochs=3).fit(model, loader())
    run = read_run(tmp_path / "run")
    epochs, losses = loss_by_epoch(run)
    assert epochs == [0, 1, 2]
    assert losses == pytest.approx([sum(found) / len(found) for found in model.by_epoch.values()], rel=1e-4)
    rates = rates_by_group(run)
    assert list(rates) == ["0-SGD/pg1", "0-SGD/pg2"]
    first = rates["0-SGD/pg1"]
    assert first[1] / first[0] == pytest.approx(0.5)
    assert rates["0-SGD/pg2"] == pytest.approx([rate / 5 for rate in first])
    found = {name: (kind, detail, size) for name, kind, detail, size in layers(run)}
    assert found["net.1"] == ("ReLU", "", 0)
    kind, detail, size = found["net.0"]
    assert (kind, size) == ("Linear", sum(parameter.numel() for parameter in model.net[0].parameters()))
    assert detail.startswith("in_features=")
