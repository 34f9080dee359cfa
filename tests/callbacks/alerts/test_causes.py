"""The cause that a training's alert names, and what its advice, followed literally, does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_diabetes
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
    assert "  why: net.conv2.bias is -2 in all 32 channels, since the start." in str(alert)
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


@pytest.mark.parametrize("lr", [1.0, 2.0])
def test_a_rate_that_is_too_high_is_blamed_and_not_a_usual_weight_decay(lr: float) -> None:
    seed_everything(0, verbose=False)
    first, *_ = alerts_of(Net(adam(lr)), data())
    assert first.causes[0].name == "rate_too_high"
    assert f"The learning rate is {lr:g}; AdamW's usual range is 1e-05 to 0.01" in first.diagnosis
    assert "weight_decay" not in first.text.replace("learning rate times weight_decay", "")
    assert (first.remedies[0].target, first.remedies[0].from_, first.remedies[0].to) == ("optimizer.lr", lr, 0.003)


def test_what_is_set_is_not_advised_and_what_the_model_has_not_is_not_named() -> None:
    seed_everything(0, verbose=False)
    module = Net(lambda parameters: torch.optim.SGD(parameters, lr=100.0))
    found = alerts_of(module, data(), gradient_clip_val=1.0)
    assert found
    for alert in found:
        assert "gradient_clip_val" not in alert.text
        assert not any(word in alert.text for word in ("recurrent", "QK", "padding"))
    assert found[0].causes[0].name == "rate_too_high"


def test_a_loss_that_is_summed_is_named_where_every_step_is_clipped() -> None:
    seed_everything(0, verbose=False)
    module = Net(lambda p: torch.optim.SGD(p, lr=0.1), lambda output, batch: F.cross_entropy(output, batch[1], reduction="sum"))
    clipped = next(alert for alert in alerts_of(module, data(), gradient_clip_val=1e-1) if alert.kind == "always_clipped")
    assert clipped.causes[0].name == "loss_summed"
    (said,) = re.findall(r"([\d.]+) times that of guessing \(1\.4\), with a batch of 16: it is summed", clipped.causes[0].statement)
    assert said in "".join(clipped.causes[0].evidence_for)
    assert (clipped.remedies[0].op, clipped.remedies[0].target, clipped.remedies[0].to) == ("scale", "loss", 0.062)


def test_nan_in_the_data_in_the_loss_and_in_the_weights_are_distinguished() -> None:
    x, y = data()
    x[300, 5] = torch.nan
    seed_everything(0, verbose=False)
    in_data, *_ = alerts_of(Net(adam()), (x, y))
    seed_everything(0, verbose=False)
    in_loss, *_ = alerts_of(
        Net(adam(), lambda output, batch: F.cross_entropy(output, batch[1]) + (batch[0] * 0).sum().sqrt().log() * 0), data()
    )
    seed_everything(0, verbose=False)
    module = Net(adam())
    module.net[2].weight.data[1, 3] = torch.nan
    in_weights, *_ = alerts_of(module, data())
    names = [alert.causes[0].name for alert in (in_data, in_loss, in_weights)]
    assert names == ["nonfinite_data", "nonfinite_operation", "nonfinite_weights"]
    assert (in_data.message, in_data.samples) == ("batch[0] has NaN in it.", (300,))
    assert in_data.diagnosis.startswith("The first operation with it is addmm in ")
    assert in_loss.causes[0].remedies[0].op == "replace"
    assert in_loss.title == "Log of 0"
    assert in_weights.diagnosis.startswith("net.2.weight held 1 of 128 numbers that are NaN or infinite when training started")


def test_parameters_in_no_optimizer_are_to_be_added() -> None:
    seed_everything(0, verbose=False)
    module = Net(adam())
    module.configure_optimizers = lambda: torch.optim.Adam(module.net[0].parameters(), lr=1e-3)  # type: ignore[method-assign]
    alert = next(alert for alert in alerts_of(module, data()) if alert.kind == "not_optimized")
    assert alert.causes[0].statement == "net.2.weight, net.2.bias are in no optimizer."
    assert (alert.remedies[0].op, alert.remedies[0].target, alert.remedies[0].to) == (
        "add",
        "net.2.weight, net.2.bias",
        "optimizer",
    )


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_of_all_pairs_is_one_message() -> None:
    seed_everything(0, verbose=False)
    x, y = (torch.tensor(part).float() for part in load_diabetes(return_X_y=True))
    module = Net(adam(), lambda output, batch: F.mse_loss(output, batch[1]))
    module.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    found = alerts_of(module, ((x / x.std(0))[:331], ((y - y.mean()) / y.std())[:331]))
    assert [alert.name for alert in found] == ["output_range at mse_loss"]  # gradients are alike, and targets are not


def test_facts_that_cannot_be_read_leave_alerts_without_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no")

    monkeypatch.setattr("lightning_hooks.judge.diagnosis.measured", broken)
    seed_everything(0, verbose=False)
    with pytest.warns(UserWarning, match="The causes of alerts: the facts raised RuntimeError: no; training goes on"):
        found = alerts_of(Net(adam(2.0)), data(), max_epochs=1)
    assert found
    assert found[0].causes == ()


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
