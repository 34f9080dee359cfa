"""Outputs and gradients whose numbers torch does not keep in memory: marked as negative or as zero, or freed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradientClipMonitor, GradientFlowMonitor, monitors
from lightning_hooks.statistics.kernels import kernels_for
from tests.support.models import Classifier, loader, mlp, trainer


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LIGHTNING_HOOKS_NATIVE", "1" if request.param == "compiled" else "0")
    kernels_for.cache_clear()
    yield
    kernels_for.cache_clear()


class Conjugate(nn.Module):
    """torch marks the imaginary part as negative and does not compute it."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.complex(x, x).conj().imag


class WithConjugate(Classifier):
    def __init__(self) -> None:
        super().__init__(mlp())
        self.conjugate = Conjugate()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.conjugate(torch.tensor([1.0, math.nan, -3.0]))
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize("histograms", [False, True])
def test_outputs_with_the_negative_bit_are_measured(histograms: bool) -> None:
    trio = monitors(every_n_steps=1, summary=False, histograms=histograms, on_alert="log")
    trainer(trio).fit(WithConjugate(), loader())
    stats = trio[0].report.sites["conjugate"]
    assert (stats.mean, stats.min, stats.max) == (1.0, -1.0, 3.0)
    assert stats.nonfinite_fraction == pytest.approx(1 / 3)


class Offloading(torch.optim.Optimizer):
    """Takes each gradient as it comes, frees it, and steps with what it kept."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})
        self.kept: dict[Tensor, Tensor] = {}
        for parameter in self.param_groups[0]["params"]:
            parameter.register_post_accumulate_grad_hook(self.take)

    def take(self, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.kept[parameter] = parameter.grad.clone()
        parameter.grad.untyped_storage().resize_(0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        for parameter, gradient in self.kept.items():
            parameter.sub_(gradient, alpha=self.param_groups[0]["lr"])
        self.kept.clear()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none=True)  # zeros cannot be written where there is no memory


def test_freed_gradients_are_neither_read_nor_missing() -> None:
    flow, clip = GradientFlowMonitor(every_n_steps=1, summary=False), GradientClipMonitor(summary=False)
    torch.manual_seed(0)
    plain = Classifier(mlp(), optimizer=Offloading)
    trainer().fit(plain, loader())
    torch.manual_seed(0)
    model = Classifier(mlp(), optimizer=Offloading)
    trainer([flow, clip]).fit(model, loader())
    assert model.losses == plain.losses
    assert flow.report.parameters == {}
    assert flow.report.modules
    assert not [alert for alert in (*flow.report.alerts, *clip.report.alerts) if alert.kind in ("missing", "nonfinite", "zero")]


class Zeros(Classifier):
    def on_after_backward(self) -> None:
        for parameter in self.parameters():
            parameter.grad = torch._efficientzerotensor(parameter.shape)


def test_gradients_of_zeros_without_memory_are_zeros() -> None:
    flow = GradientFlowMonitor(every_n_steps=1, summary=False, on_alert="log")
    trainer([flow]).fit(Zeros(mlp()), loader())
    assert {(s.norm, s.zero_fraction, s.update_ratio) for s in flow.report.parameters.values() if s.update_ratio is not None} == {
        (0.0, 1.0, 0.0)
    }
