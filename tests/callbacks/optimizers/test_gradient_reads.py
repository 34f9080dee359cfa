"""Where nobody can clip, gradients are read once a step; wherever somebody might, they are read again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from lightning.pytorch import Callback
from torch import Tensor

from lightning_hooks import GradientClipMonitor, monitors
from lightning_hooks.statistics.kernels import kernels_for
from tests.support.models import Classifier, loader, mlp, trainer


class Rescale(Callback):
    """Halves the gradients, in a way that torch's version counters do not see."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        for parameter in pl_module.parameters():
            parameter.grad.data.mul_(0.5)


class ClipsItself(Classifier):
    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None:
        for parameter in self.parameters():
            parameter.grad.data.mul_(0.5)


def looks(monkeypatch: pytest.MonkeyPatch, module: Any, callbacks: list[Any], **kwargs: Any) -> tuple[int, Any]:
    """How often gradients were read, and the clip monitor's statistics."""
    count, kernels, parameters = 0, kernels_for("cpu"), len([*module.parameters()])
    read = kernels.norms

    def counting(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += len(tensors) == parameters and not kwargs.get("zeros")
        return read(tensors, *args, **kwargs)

    monkeypatch.setattr(kernels, "norms", counting)
    clips = [each for each in callbacks if isinstance(each, GradientClipMonitor)]
    clip = clips[0] if clips else GradientClipMonitor(summary=False)
    trainer(callbacks if clips else [clip, *callbacks], limit_train_batches=4, **kwargs).fit(module, loader())
    (stats,) = clip.report.optimizers.values()
    return count, stats


def test_once_a_step_where_nobody_can_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    count, stats = looks(monkeypatch, Classifier(mlp()), [])
    assert count == stats.steps == 4
    assert (stats.clipped_steps, stats.norm_after) == (0, stats.norm_before)


@pytest.mark.parametrize("case", ["callback", "module", "lightning"])
def test_twice_where_somebody_can(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ClipsItself(mlp()) if case == "module" else Classifier(mlp())
    count, stats = looks(
        monkeypatch,
        module,
        [Rescale()] if case == "callback" else [],
        **({"gradient_clip_val": 1e-3} if case == "lightning" else {}),
    )
    assert count == 2 * stats.steps == 8
    assert stats.clipped_steps == 4
    assert stats.coefficient == pytest.approx(0.5) if case != "lightning" else stats.norm_after == pytest.approx(1e-3, rel=1e-3)


def test_the_trio_reads_gradients_once_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    count, stats = looks(monkeypatch, Classifier(mlp()), monitors(summary=False))
    assert stats.steps == 4
    assert count == 3  # at the sampled step the flow monitor's look, which counts zeros too, serves all
