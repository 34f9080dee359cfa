"""Manual optimisation, several optimizers, LBFGS, steps that do not happen."""

from __future__ import annotations

import math
from typing import Any, ClassVar
from weakref import ref

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn

from lightning_hooks import GradientClipMonitor, GradientClipper, GradientFlowMonitor, monitors
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


def test_a_raw_optimizer_step_is_seen_too() -> None:
    class Raw(Classifier):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.automatic_optimization = False
            self.pairs: list[tuple[float, float]] = []

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers(use_pl_optimizer=False)
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            before = grad_norm(self.parameters())
            torch.nn.utils.clip_grad_norm_(self.parameters(), 0.3)
            self.pairs.append((before, grad_norm(self.parameters())))
            optimizer.step()

    torch.manual_seed(0)
    model, clip = Raw(mlp()), GradientClipMonitor(summary=False)
    trainer([clip]).fit(model, loader())
    assert_events(clip.report.optimizers["0-SGD"], model.pairs)


def test_gradients_that_are_zeroed_without_a_step_are_let_go() -> None:
    class Discarding(Classifier):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx))
            gradient = ref(self.net[0].weight.grad)
            self.zero_grad()
            kept.append(gradient() is not None)
            self.manual_backward(super().training_step(batch, batch_idx))
            self.optimizers().step()
            self.zero_grad()

    kept: list[bool] = []
    trainer([GradientClipMonitor(summary=False)]).fit(Discarding(mlp()), loader())
    assert kept == [False] * 7


def test_manual_accumulation_counts_steps_not_batches() -> None:
    class Every3(Classifier):
        def __init__(self, net: nn.Module) -> None:
            super().__init__(net)
            self.automatic_optimization = False
            self.norms: list[float] = []

        def training_step(self, batch: Any, batch_idx: int) -> None:
            self.manual_backward(super().training_step(batch, batch_idx) / 3)
            if batch_idx % 3 == 2:
                self.norms.append(grad_norm(self.parameters()))
                self.optimizers().step()
                self.optimizers().zero_grad()

    torch.manual_seed(0)
    model, ours = Every3(mlp()), monitors(every_n_steps=1, summary=False)
    trainer(ours).fit(model, loader(n=72))
    stats = ours[2].report.optimizers["0-SGD"]
    assert (stats.steps, stats.skipped_steps) == (3, 0)
    assert stats.norm_before == pytest.approx(np.mean(model.norms), rel=1e-5)
    assert ours[1].report.parameters["net.0.weight"].steps == 3


def test_lbfgs_counts_one_step_a_batch() -> None:
    class WithLBFGS(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.evaluations = getattr(self, "evaluations", 0) + 1

    torch.manual_seed(0)
    model, ours = WithLBFGS(mlp()), monitors(every_n_steps=1, summary=False)
    trainer(ours).fit(model, loader())
    assert model.evaluations > 7
    assert not any(callback.faults.errors for callback in ours[:3])
    stats = ours[2].report.optimizers["0-LBFGS"]
    assert (stats.steps, stats.skipped_steps, stats.clipped_steps) == (7, 0, 0)
    assert ours[1].report.parameters["net.0.weight"].steps == 7
    assert 0 < ours[1].report.parameters["net.0.weight"].update_ratio < 1


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_training_step_that_returns_none_is_no_step_and_nothing_is_missing() -> None:
    class Sometimes(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor | None:
            loss = super().training_step(batch, batch_idx)
            return loss if batch_idx % 2 == 0 else None

    torch.manual_seed(0)
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours).fit(Sometimes(mlp()), loader())
    flow, clip = ours[1].report, ours[2].report
    assert (clip.optimizers["0-SGD"].steps, clip.optimizers["0-SGD"].skipped_steps) == (4, 0)
    assert {(s.steps, s.missing_steps) for s in flow.parameters.values()} == {(4, 0)}
    assert flow.alerts == ()


def test_one_point_per_epoch_per_tag(tmp_path: Any) -> None:
    from lightning.pytorch.loggers import TensorBoardLogger
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path, name="", version="")
    trainer(monitors(summary=False), logger=logger, max_epochs=2).fit(Gan(), loader())
    events = EventAccumulator(str(tmp_path)).Reload()
    ours = [tag for tag in events.Tags()["scalars"] if tag.startswith(("features/", "gradient_"))]
    assert len(ours) > 50
    assert {len(events.Scalars(tag)) for tag in ours} == {2}


def test_a_parameter_shared_by_two_names_counts_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(torch.relu(self.one(x))))

    class Keep(Classifier):
        norms: ClassVar[list[float]] = []

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            self.norms.append(grad_norm(self.parameters()))

    torch.manual_seed(0)
    model, flow = Keep(Tied()), GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([flow]).fit(model, loader())
    assert "net.two.weight" not in flow.report.parameters
    assert flow.report.total_norm == pytest.approx(np.mean(model.norms), rel=1e-5)


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
    counted = {name: sum(counts) for name, (_, counts) in ours[1].histograms.items()}
    assert counted == {name: stats.count for name, stats in flow.modules.items()}


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


def test_a_step_skipped_in_a_gan_is_not_committed_by_the_other_optimizer() -> None:
    class Overflowing(Gan):
        def manual_backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
            self.count = getattr(self, "count", 0) + 1
            super().manual_backward(loss * math.inf if self.count == 1 else loss, *args, **kwargs)

    torch.manual_seed(0)
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours, plugins=amp(8.0)).fit(Overflowing(), loader())
    clip, flow = ours[2].report, ours[1].report
    assert [(s.steps, s.skipped_steps) for s in clip.optimizers.values()] == [(6, 1), (7, 0)]
    assert all(stats.nonfinite_fraction == 0 for stats in flow.modules.values())
    assert [alert.kind for alert in flow.alerts if alert.severity != "info"] == []


class OwnScaler(Classifier):
    """Mixed precision by hand: clips after ``unscale_``, or before it, by mistake."""

    def __init__(self, unscales: bool | None) -> None:
        super().__init__(mlp())
        self.automatic_optimization = False
        self.unscales = unscales
        self.scaler = torch.amp.GradScaler("cpu", enabled=unscales is not None)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        optimizer.zero_grad()
        self.manual_backward(self.scaler.scale(super().training_step(batch, batch_idx)))
        if self.unscales:
            self.scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters(), 100.0)
        self.scaler.step(optimizer)
        self.scaler.update()


def test_gradients_under_a_scaler_of_the_user_s_own_are_those_without_one() -> None:
    def fit(unscales: bool | None) -> tuple[Any, Any]:
        torch.manual_seed(0)
        monitor, clips = GradientFlowMonitor(every_n_steps=1, summary=False), GradientClipMonitor(summary=False)
        trainer([monitor, clips]).fit(OwnScaler(unscales), loader())
        return monitor, clips

    (plain, _), (scaled, clips), (_, too_soon) = fit(None), fit(True), fit(False)
    assert scaled.report.total_norm == pytest.approx(plain.report.total_norm, rel=1e-4)
    for name, stats in plain.report.parameters.items():
        assert scaled.report.parameters[name].norm == pytest.approx(stats.norm, rel=1e-3)
    assert clips.report.optimizers["0-SGD"].rate == 0.0
    assert too_soon.report.optimizers["0-SGD"].rate == 1.0


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
