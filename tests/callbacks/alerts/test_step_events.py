"""Single steps as they really happen: jumps, NaN, gradients that nobody zeroed, and clipping that came too late."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_hooks import GradientClipMonitor
from lightning_hooks.clipping.watch import StepEvents
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import Recorder, assert_same, total_norm

N = 7  # steps of an epoch


def events(model: LightningModule, **kwargs: Any) -> dict[str, StepEvents]:
    monitor = GradientClipMonitor(summary=False)
    trainer([monitor], **kwargs).fit(model, loader())
    assert monitor.report is not None
    return monitor.report.events


class Spoiled(Classifier):
    """At one batch the input is changed."""

    def __init__(self, at: int, factor: float, **kwargs: Any) -> None:
        torch.manual_seed(0)
        super().__init__(mlp(), **kwargs)
        self.at, self.factor = at, factor

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        factor = self.factor if self.trainer.current_epoch * N + batch_idx == self.at else 1.0
        return super().training_step((batch[0] * factor, batch[1]), batch_idx)


@pytest.mark.parametrize(("at", "epoch"), [(4, 0), (N + 2, 1)])
def test_jump_of_a_monstrous_batch(at: int, epoch: int) -> None:
    model, recorder, monitor = Spoiled(at, 1e3), Recorder([]), GradientClipMonitor(summary=False)
    trainer([recorder, monitor], max_epochs=epoch + 1).fit(model, loader())
    norms = [total_norm(step) for step in recorder.steps]
    found = monitor.report.events["0-SGD"]
    assert (found.jump_batch, found.jump_before) == (at - epoch * N, at)
    assert found.jump == pytest.approx(norms[at] / max(norms[:at]), rel=1e-6)
    assert found.jump_norm == pytest.approx(norms[at], rel=1e-6)
    parameters = recorder.steps[at]
    assert found.jump_parameter == max(parameters, key=lambda name: float((parameters[name] ** 2).sum()))


def test_first_step_with_nan_whatever_the_sampling() -> None:
    found = events(Spoiled(3, math.nan))["0-SGD"]
    assert (found.first_nonfinite_batch, found.nonfinite_share) == (3, 1.0)
    assert found.first_nonfinite_parameters == ("net.0.weight", "net.4.bias")


class Manual(Classifier):
    """A loop by hand: zeroed before backward, after the step, or never; gradients set to None or to zeros."""

    def __init__(self, zero: str, none: bool = True, micro: int = 1) -> None:
        torch.manual_seed(0)
        super().__init__(mlp())
        self.automatic_optimization, self.zero, self.none, self.micro = False, zero, none, micro

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        if self.zero == "before":
            optimizer.zero_grad(set_to_none=self.none)  # type: ignore[union-attr]
        for _ in range(self.micro):
            self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
        optimizer.step()  # type: ignore[union-attr]
        if self.zero == "after":
            optimizer.zero_grad(set_to_none=self.none)  # type: ignore[union-attr]


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("zero", ["before", "after", "never"])
def test_gradients_that_nobody_zeroed(zero: str, none: bool, micro: int) -> None:
    found = events(Manual(zero, none, micro))["0-SGD"]
    assert found.unzeroed_steps == (N - 1 if zero == "never" else 0)  # at the first there was nothing to zero


class ClipsEarly(Classifier):
    """Clips what the last step left, which is zeroed before backward."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.net[0].weight.grad is not None:
            nn.utils.clip_grad_norm_(self.parameters(), 1e-2)
        return super().training_step(batch, batch_idx)


class ClipsInTime(Classifier):
    """Clips after backward, where a hook may."""

    def on_after_backward(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters(), 1e-2)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_clipping_in_vain(optimizer: Any) -> None:
    name = f"0-{optimizer.__name__}"
    assert events(ClipsEarly(mlp(), optimizer=optimizer))[name].wasted_clips == N - 1
    assert events(ClipsInTime(mlp(), optimizer=optimizer))[name].wasted_clips == 0
    assert events(Classifier(mlp(), optimizer=optimizer), gradient_clip_val=1e-2)[name].wasted_clips == 0


def test_the_past_survives_a_checkpoint(tmp_path: Any) -> None:
    whole, first, second = (GradientClipMonitor(summary=False) for _ in range(3))
    trainer([whole], max_epochs=2).fit(Spoiled(N + 2, 1e3), loader())
    early = trainer([first], max_epochs=1)
    early.fit(Spoiled(N + 2, 1e3), loader())
    early.save_checkpoint(tmp_path / "one.ckpt")
    trainer([second], max_epochs=2).fit(Spoiled(N + 2, 1e3), loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert_same(second.report.events, whole.report.events)
    assert whole.report.events["0-SGD"].jump_before == N + 2
