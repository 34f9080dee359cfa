"""Manual optimisation, several optimizers, LBFGS, steps that do not happen."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from lightning_hooks import GradientClipMonitor, GradientClipper, monitors
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import assert_events, grad_norm
from tests.support.trainings import Gan, amp


@pytest.mark.parametrize("toggle", [False, True])
def test_a_gan_has_a_series_per_optimizer_and_its_manual_clip_is_seen(toggle: bool) -> None:
    torch.manual_seed(0)
    model, ours = Gan(toggle), monitors(every_n_steps=1, summary=False)
    run = trainer(ours)
    run.fit(model, loader())
    flow, clip = ours[1].report, ours[2].report
    for name, pairs in model.pairs.items():
        assert_events(clip.optimizers[name], pairs)
        assert f"gradient_clip/{name}/rate" in run.callback_metrics
    assert "gradient_clip/rate" not in run.callback_metrics
    assert clip.optimizers["1-SGD"].clipped_steps > 0
    means = [np.mean([before for before, _ in pairs]) for pairs in model.pairs.values()]
    assert flow.total_norm == pytest.approx(math.sqrt(sum(mean**2 for mean in means)), rel=1e-5)
    assert {stats.steps for stats in flow.parameters.values()} == {7}


class TwoLosses(Classifier):
    """Both losses go backward, then both optimizers step, in either order; one loss overflows at batch 1."""

    def __init__(self, first: int, overflows: int) -> None:
        torch.manual_seed(0)
        super().__init__(mlp())
        self.automatic_optimization = False
        self.critic = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
        self.first, self.overflows = first, overflows

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizers = self.optimizers()
        losses = [super().training_step(batch, batch_idx), self.critic(batch[0]).pow(2).mean()]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for place, loss in enumerate(losses):
            self.manual_backward(loss * (1e38 if (place, batch_idx) == (self.overflows, 1) else 1.0))
        for place in (self.first, 1 - self.first):
            optimizers[place].step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), lr=0.01) for part in (self.net, self.critic)]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("overflows", [0, 1])
def test_a_step_skipped_for_one_of_two_losses_leaves_the_other_s_gradients(first: int, overflows: int) -> None:
    ours = monitors(every_n_steps=1, summary=False, histograms=True)
    trainer(ours, plugins=MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))).fit(
        TwoLosses(first, overflows), loader()
    )
    flow, clip = ours[1].report, ours[2].report
    assert [stats.skipped_steps for stats in clip.optimizers.values()] == [int(overflows == 0), int(overflows == 1)]
    calls = {name: stats.calls for name, stats in flow.modules.items()}
    parts = {name: 0 if name.startswith("net") else 1 for name in calls}
    assert calls == {name: 6 if part == overflows else 7 for name, part in parts.items()}
    assert all(stats.nonfinite_fraction == 0 for stats in flow.modules.values())
    assert "nonfinite" not in [alert.kind for alert in flow.alerts]
    assert ours[1].histograms == {}  # scaled gradients have none


class Manual(Classifier):
    """Manual optimisation; keeps the norm each step was taken with."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.automatic_optimization = False
        self.norms: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(10 * super().training_step(batch, batch_idx))
        optimizer.step()
        self.norms.append(grad_norm(self.parameters()))


@pytest.mark.parametrize("policy", ["norm", "agc", "zclip", "autoclip", "tensor"])
@pytest.mark.parametrize("scaled", [False, True])
def test_the_clipper_clips_under_manual_optimisation_with_a_loss_scaler(policy: str, scaled: bool) -> None:
    torch.manual_seed(0)
    model, clipper = Manual(mlp()), GradientClipper(policy=policy, summary=False)
    trainer([clipper], plugins=amp(64.0) if scaled else None).fit(model, loader())
    stats = clipper.report.optimizers["0-SGD"]
    if policy == "norm":
        assert model.norms == pytest.approx([1.0] * 7, rel=1e-3)
    assert stats.norm_after == pytest.approx(sum(model.norms) / 7, rel=1e-3)


class Accumulates(Classifier):
    """Steps every third batch; zeroes gradients before each batch, or each of two backward passes, or after the step only."""

    def __init__(self, zeroes: str) -> None:
        super().__init__(mlp())
        self.automatic_optimization = False
        self.zeroes = zeroes

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        for number in range(2):
            if self.zeroes == "each backward" or (self.zeroes == "each batch" and number == 0):
                optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(("zeroes", "discarded"), [("each batch", 4), ("each backward", 4), ("after the step", 0)])
def test_batches_whose_gradients_are_never_used_are_counted(zeroes: str, discarded: int) -> None:
    monitor = GradientClipMonitor(summary=False)
    trainer([monitor], limit_train_batches=6).fit(Accumulates(zeroes), loader())
    (events,) = monitor.report.events.values()
    assert events.discarded_batches == discarded  # two of three, twice
    assert monitor.report.optimizers["0-SGD"].steps == 2
