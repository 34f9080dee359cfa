"""Manual optimisation, several optimizers, LBFGS, steps that do not happen."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import Tensor, nn

from lightning_hooks import GradientClipMonitor, GradientFlowMonitor, monitors
from tests.callbacks.test_gradient_clip import assert_events
from tests.support.models import Classifier, loader, mlp, trainer


def grad_norm(parameters: Any) -> float:
    return math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in parameters if p.grad is not None))


class Gan(Classifier):
    """Generator and discriminator in one batch, with stale gradients of the other in between; G is clipped by hand."""

    def __init__(self, toggle: bool = False) -> None:
        super().__init__(nn.Identity())
        self.automatic_optimization = False
        self.toggle = toggle
        self.g = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.d = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        self.pairs: dict[str, list[tuple[float, float]]] = {"0-Adam": [], "1-SGD": []}

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0]
        opt_d, opt_g = self.optimizers()
        if self.toggle:
            self.toggle_optimizer(opt_d)
        fake = self.g(torch.ones_like(real))
        loss = nn.functional.softplus(-self.d(real)).mean() + nn.functional.softplus(self.d(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(loss)
        norm = grad_norm(self.d.parameters())
        self.pairs["0-Adam"].append((norm, norm))
        opt_d.step()
        if self.toggle:
            self.untoggle_optimizer(opt_d)
            self.toggle_optimizer(opt_g)
        opt_g.zero_grad()
        self.manual_backward(nn.functional.softplus(-self.d(self.g(torch.ones_like(real)))).mean())
        before = grad_norm(self.g.parameters())
        torch.nn.utils.clip_grad_norm_(self.g.parameters(), 0.02)
        self.pairs["1-SGD"].append((before, grad_norm(self.g.parameters())))
        opt_g.step()
        if self.toggle:
            self.untoggle_optimizer(opt_g)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.d.parameters(), lr=0.01), torch.optim.SGD(self.g.parameters(), lr=0.1)]


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
