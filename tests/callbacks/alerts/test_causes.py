"""The cause that a training's alert names, and what its advice, followed literally, does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor, demo

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_model_summary": False,
    "enable_progress_bar": False,
}


class Net(LightningModule):
    """Two linear layers and a rectifier."""

    def __init__(self, optimizer: Callable[[Any], Any], loss: Callable[[Tensor, Any], Tensor] | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
        self.optimizer, self.loss = optimizer, loss or (lambda output, batch: F.cross_entropy(output, batch[1]))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch)

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(512, 8, generator=generator)
    return x, x[:, :4].argmax(1)


def alerts_of(module: LightningModule, tensors: tuple[Tensor, Tensor], **options: Any) -> list[Alert]:
    """The alerts above info of a short training."""
    found: list[Alert] = []
    monitor = TrainingMonitor(every_n_steps=2, summary=False, on_alert=found.append)
    loader = DataLoader(TensorDataset(*tensors), 16, shuffle=True)
    Trainer(**{**QUIET, "max_epochs": 3, **options}, callbacks=[monitor]).fit(module, loader)
    return [alert for alert in found if alert.severity != "info"]


def adam(lr: float = 1e-3) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.AdamW(parameters, lr=lr)


@pytest.mark.example
def test_what_the_demo_advises_cures_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (alert, *_), faulty = demo.run(tmp_path)
    cause, remedy = alert.causes[0], alert.remedies[0]
    assert (alert.name, cause.name) == ("dead at net.relu2", "offset_bias")
    assert cause.statement == "net.conv2.bias is -2 in all 32 channels, since the start."
    assert (remedy.op, remedy.target, remedy.to) == ("fill", "net.conv2.bias", 0.0)
    assert "likely): net.conv2.bias is -2 in all 32 channels, since the start." in str(alert)
    assert "  try: fill net.conv2.bias with 0: nn.init.zeros_(self.net.conv2.bias)." in str(alert)
    whole = demo.ShapesNet.__init__

    def repaired(self: Any, bias: float) -> None:
        whole(self, bias)
        exec(remedy.code, {"nn": nn, "self": self})  # literally

    monkeypatch.setattr(demo.ShapesNet, "__init__", repaired)
    _, left, cured = demo.run(tmp_path)
    monkeypatch.undo()
    *_, healthy = demo.run(tmp_path, healthy=True)
    assert left == []
    assert faulty < 0.5 < healthy == cured


def test_a_schedule_that_is_over_is_made_as_long_as_the_training() -> None:
    seed_everything(0, verbose=False)

    def configure(parameters: Any) -> Any:
        optimizer = torch.optim.Adam(parameters, lr=1e-3)
        schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    alert = next(alert for alert in alerts_of(Net(configure), data(), max_epochs=8) if alert.kind == "lr_zero")
    assert alert.causes[0].name == "wrong_schedule"
    assert "its total_iters is 40, and 256 steps are planned" in alert.causes[0].evidence_for
    remedies = [(remedy.op, remedy.target, remedy.from_, remedy.to) for remedy in alert.remedies[:2]]
    assert remedies == [("set", "scheduler.total_iters", 40, 256), ("remove", "scheduler", "PolynomialLR", None)]
    assert alert.advice[0] == "Set scheduler.total_iters to 256 (it is 40): PolynomialLR(optimizer, total_iters=256)"


def test_an_alert_that_lasts_keeps_its_causes_and_a_resumed_training_too() -> None:
    seed_everything(0, verbose=False)
    module = Net(adam())
    nn.init.constant_(module.net[0].bias, -20.0)
    monitor = TrainingMonitor(every_n_steps=2, summary=False, on_alert=lambda alert: None)
    Trainer(**QUIET, max_epochs=3, callbacks=[monitor]).fit(module, DataLoader(TensorDataset(*data()), 16))
    alert = next(alert for alert in monitor.features.alerts if alert.kind == "dead")
    assert alert.epoch == 2
    assert alert.diagnosis == alert.causes[0].statement == "net.0.bias is -20 in all 32 units, since the start."
    resumed = TrainingMonitor(every_n_steps=2, summary=False)
    resumed.load_state_dict(monitor.state_dict())
    states = [one.state_dict()["features"]["alerts"]["problems"] for one in (resumed, monitor)]
    assert states[0] == states[1]
    ((*_, (occurrence,)),) = (problem for problem in states[0] if problem[0] == "dead")
    assert occurrence["passed_on"]["causes"][0]["name"] == "offset_bias"
