"""What looks like a fault and is meant, or is another fault than it looks like: as the monitors report it in real fits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from sklearn import base as installed
from torch import Tensor, nn

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor, monitors
from lightning_hooks.alerts import Alert
from tests.support.models import Classifier, loader, mlp, trainer


def alerts(monitor: Any, model: LightningModule, **kwargs: Any) -> list[Alert]:
    trainer([monitor], **kwargs).fit(model, loader())
    return list(monitor.report.alerts)


def found(model: LightningModule, kind: str, **kwargs: Any) -> dict[str, str]:
    """The sites of a kind of alert of the gradients, and how severe it is there."""
    flow = alerts(GradientFlowMonitor(every_n_steps=1, summary=False), model, **kwargs)
    return {alert.site: alert.severity for alert in flow if alert.kind == kind and not alert.cause}


class Branches(nn.Module):
    """Has a branch that its forward does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.spare = nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 3), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@pytest.mark.parametrize("library", [False, True])
def test_a_branch_that_is_not_used_is_the_users_or_a_librarys(library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if library:
        monkeypatch.setattr(Branches, "__module__", installed.__name__)  # as if it came from a library
    severity = "info" if library else "warning"
    assert found(Classifier(Branches()), "missing") == {"net.spare.0.bias": severity, "net.spare.0.weight": severity}


class Detached(nn.Module):
    """Cuts its blocks off, or does not run them."""

    def __init__(self, runs: bool) -> None:
        super().__init__()
        self.runs, self.encoder, self.head = runs, nn.ModuleDict({"blocks": nn.ModuleList([nn.Linear(8, 8)])}), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder["blocks"][0](x).detach() if self.runs else x)  # type: ignore[index]


@pytest.mark.parametrize(("runs", "severity"), [(True, "warning"), (False, "info")])
def test_blocks_of_a_librarys_model_that_run_are_not_spare(runs: bool, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Detached, "__module__", installed.__name__)
    expected = {f"net.encoder.blocks.0.{name}": severity for name in ("bias", "weight")}
    assert found(Classifier(Detached(runs)), "missing") == expected


class Follows(Classifier):
    """A target network that follows the trained one; the optimizer was given both."""

    def __init__(self, copied: bool = True) -> None:
        super().__init__(mlp())
        self.target = copy.deepcopy(self.net) if copied else mlp()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for weight, online in zip(self.target.parameters(), self.net.parameters(), strict=True):
                weight.lerp_(online, 0.01)
            goal = self.target(batch[0])
        return super().training_step(batch, batch_idx) + (self.net(batch[0]) - goal).square().mean()


def test_a_target_network_is_distinguished_from_a_part_that_is_cut_off() -> None:
    assert {*found(Follows(), "missing").values()} == {"info"}
    assert {*found(Follows(copied=False), "missing").values()} == {"warning"}  # of the same shape, but it follows nobody yet


class Cut(Classifier):
    """Loses its first layer in the second epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.net[:2](batch[0])
        hidden = hidden.detach() if self.current_epoch else hidden
        return nn.functional.cross_entropy(self.net[2:](hidden), batch[1])


def test_a_part_that_loses_its_gradient() -> None:
    assert found(Cut(mlp()), "missing", max_epochs=1) == {}
    flow = alerts(GradientFlowMonitor(every_n_steps=1, summary=False), Cut(mlp()), max_epochs=2)
    missing = [alert for alert in flow if alert.kind == "missing" and not alert.cause]
    assert [alert.site for alert in missing] == ["net.0.weight", "net.0.bias"]
    assert {alert.severity for alert in missing} == {"warning"}
    assert all("It last had one in epoch 0." in alert.text for alert in missing)


class ByHand(Classifier):
    """A program that updates ``p.data`` by hand."""

    def __init__(self) -> None:
        super().__init__(mlp())
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        self.zero_grad()
        self.manual_backward(super().training_step(batch, batch_idx))
        for parameter in self.parameters():
            parameter.data -= 0.1 * parameter.grad  # type: ignore[operator]

    def configure_optimizers(self) -> None:
        return None


@pytest.mark.filterwarnings("ignore:`LightningModule.configure_optimizers` returned `None`")
def test_no_optimizer_is_said_once() -> None:
    assert found(ByHand(), "not_optimized") == {"the model": "info"}


class HeldFrozen(Classifier):
    """All is frozen but the normalisation, then the head too, which is all that the optimizer holds: nothing trains."""

    def __init__(self) -> None:
        super().__init__(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
        self.net[0].requires_grad_(False)
        self.net[2].requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net[2].parameters(), lr=0.1)


def test_an_optimizer_of_frozen_parameters() -> None:
    assert found(HeldFrozen(), "not_optimized") == {"0-SGD": "warning", "net.1.weight": "warning", "net.1.bias": "warning"}


class Codes(nn.Module):
    """Puts out something that is no floating-point tensor."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor) -> Any:
        return x.argmax(-1) if self.what == "integers" else self.what


class WithCodes(nn.Module):
    def __init__(self, what: Any) -> None:
        super().__init__()
        self.code, self.unused, self.head = Codes(what), nn.Tanh(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.code(x)
        return self.head(x)


@pytest.mark.parametrize("what", ["integers", None, object()], ids=["integers", "None", "object"])
def test_a_module_that_was_called_is_not_said_to_be_never_called(what: Any) -> None:
    monitor = FeatureStatsMonitor(modules=["net.code", "net.unused", "net.head"], every_n_steps=1, summary=False)
    given = alerts(monitor, Classifier(WithCodes(what)), max_epochs=2)
    said = {alert.site: alert.text for alert in given if alert.kind == "silent"}
    assert said["net.code"].startswith("it was called, but its output holds no floating-point tensor (integers, None, or")
    assert said["net.unused"].startswith("it was not called in any sampled training batch")
    assert monitor.report is not None
    assert (monitor.report.silent, monitor.report.unmeasured) == (("net.code", "net.unused"), ("net.code",))


class Line(LightningModule):
    """A linear regression without noise: it converges to the last bit."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self.line, self.optimizer = nn.Linear(8, 1), optimizer

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return (self.line(batch[0]) - batch[0].sum(1, keepdim=True)).square().mean()

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters())


@pytest.mark.parametrize(
    ("optimizer", "epochs"), [(lambda p: torch.optim.SGD(p, lr=0.02), 80), (lambda p: torch.optim.LBFGS(p, lr=0.1), 40)]
)
def test_what_has_converged_may_stand_still_for_as_long_as_it_runs(optimizer: Any, epochs: int) -> None:
    reported: list[Alert] = []
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False, on_alert=reported.append)
    torch.manual_seed(0)
    alerts(monitor, Line(optimizer), max_epochs=epochs)
    assert [alert.name for alert in reported if alert.kind == "update_too_small"] == []
    assert monitor.report is not None
    assert monitor.report.parameters["line.weight"].update_ratio < 1e-6  # type: ignore[operator]


def test_targets_are_not_blamed_where_gradients_add_up() -> None:
    class NotZeroed(Classifier):
        def __init__(self) -> None:
            super().__init__(mlp(), lr=0.5)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            self.manual_backward(super().training_step(batch, batch_idx))
            self.optimizers().step()  # type: ignore[union-attr]

    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    assert not [alert for alert in alerts(monitor, NotZeroed(), max_epochs=3) if alert.kind == "constant"]
    assert monitor.report is not None
    assert {setup.unzeroed_steps for setup in monitor.report.setups.values()} == {7}


def test_healthy_recipes_raise_no_alert() -> None:
    """Zero-initialised branches seen at the first step only, a mean over many positions."""

    class ZeroInit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.branch, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            nn.init.zeros_(self.branch.weight)
            nn.init.zeros_(self.branch.bias)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.branch(torch.relu(self.inner(x))))

    class LongMean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).flatten(1))

    for net, shape in ((ZeroInit(), (8,)), (LongMean(), (1, 16384))):
        ours = monitors(summary=False)
        trainer(ours).fit(Classifier(net), loader(shape))
        assert [alert.kind for callback in ours[:3] for alert in callback.report.alerts] == []
