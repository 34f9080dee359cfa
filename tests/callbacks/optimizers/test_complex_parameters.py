"""Complex parameters, as Fourier neural operators have them: both parts count."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradientClipper, monitors
from lightning_hooks.statistics.kernels import kernels_for
from tests.support.models import Classifier, loader, trainer

N = 7


def norm(tensors: Any) -> float:
    return math.sqrt(sum(float((tensor.abs().double() ** 2).sum()) for tensor in tensors))


class Spectral(Classifier):
    """Keeps gradients before and after clipping, and the weights, of each step."""

    def __init__(self, loss_factor: float = 1.0) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Module(), lr=0.01)
        self.net.weight = nn.Parameter(torch.complex(torch.zeros(8, 4), torch.randn(8, 4)))
        self.net.head = nn.Linear(4, 3)
        self.net.forward = lambda x: self.net.head((x.to(torch.cfloat) @ self.net.weight).imag)
        self.loss_factor = loss_factor
        self.before: list[list[Tensor]] = []
        self.after: list[list[Tensor]] = []
        self.weights: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) * self.loss_factor

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.before.append([p.grad.clone() for p in self.parameters()])
        self.weights.append(self.net.weight.detach().clone())

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.after.append([p.grad.clone() for p in self.parameters()])


@pytest.fixture(params=["0", "1"])
def _native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LIGHTNING_HOOKS_NATIVE", request.param)
    kernels_for.cache_clear()
    yield
    kernels_for.cache_clear()


@pytest.mark.usefixtures("_native")
def test_norms_zeros_and_update_ratios_of_complex_parameters() -> None:
    ours, model = monitors(every_n_steps=1, summary=False), Spectral()
    trainer(ours).fit(model, loader())
    found = ours[1].report.parameters["net.weight"]
    totals = [norm(step) for step in model.before]
    assert found.norm == pytest.approx(sum(norm(step[:1]) for step in model.before) / N, rel=1e-5)
    assert found.rms == pytest.approx(math.sqrt(sum(norm(step[:1]) ** 2 for step in model.before) / (N * 32)), rel=1e-5)
    assert found.zero_fraction == 0.0  # the real part of every element is
    assert ours[1].report.total_norm == pytest.approx(sum(totals) / N, rel=1e-5)
    assert ours[2].report.optimizers["0-SGD"].norm_before == pytest.approx(sum(totals) / N, rel=1e-5)
    updates = [
        norm([b - a]) / norm([a]) for a, b in zip(model.weights, [*model.weights[1:], model.net.weight.detach()], strict=True)
    ]
    assert found.update_ratio == pytest.approx(sum(updates) / N, rel=1e-4)
    assert ours[1].report.alerts == ()


@pytest.mark.parametrize(
    ("policy", "threshold"),
    [("norm", 0.01), ("value", 1e-3), ("tensor", 0.01), ("agc", 1e-3), ("zclip", 0.01), ("autoclip", 1.0)],
)
def test_every_policy_clips_complex_gradients(policy: str, threshold: float) -> None:
    model, clipper = Spectral(), GradientClipper(policy=policy, threshold=threshold, summary=False)
    trainer([clipper], max_epochs=6).fit(model, loader())
    assert not clipper.faults.errors
    stats = clipper.report.optimizers["0-SGD"]
    assert stats.norm_after == pytest.approx(sum(norm(step) for step in model.after[-N:]) / N, rel=1e-3)
    assert stats.clipped_steps > 0
    if policy == "norm":
        assert all(norm(step) <= 0.01 * 1.001 for step in model.after)
    elif policy == "tensor":
        assert all(norm([gradient]) <= 0.01 * 1.001 for step in model.after for gradient in step)
    elif policy == "value":
        assert all(float(torch.view_as_real(step[0]).abs().max()) <= 1.001e-3 for step in model.after)
    elif policy == "agc":
        rows = [step[0].abs().double().square().sum(1).sqrt() for step in model.after]
        allowed = [1e-3 * weight.abs().double().square().sum(1).sqrt() for weight in model.weights]
        assert all(bool((row <= most * 1.001).all()) for row, most in zip(rows, allowed, strict=True))
