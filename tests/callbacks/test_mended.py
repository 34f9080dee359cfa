"""Traps that the trio once fell into."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import FeatureStatsMonitor, GradientClipMonitor, GradientClipper, GradientFlowMonitor, monitors
from tests.callbacks.alerts.test_on_alert import dying
from tests.callbacks.optimizers.test_manual_optimization import Gan, grad_norm
from tests.callbacks.optimizers.test_precision import amp
from tests.callbacks.test_base import Faulty
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer


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
    assert [alert.kind for alert in flow.alerts] == []


def test_gradients_computed_inside_the_training_step_are_not_the_losss() -> None:
    class Adversarial(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x = batch[0].clone().requires_grad_()
            (g,) = torch.autograd.grad(nn.functional.cross_entropy(self.net(x), batch[1], reduction="sum") * 50, x)
            out = self.net(batch[0] + 0.1 * g.sign())
            out.register_hook(lambda gradient: self.kept.append(gradient.clone()))
            return nn.functional.cross_entropy(out, batch[1])

        kept: Any

    model, flow = Adversarial(mlp()), GradientFlowMonitor(every_n_steps=1, summary=False)
    model.kept = []
    trainer([flow]).fit(model, loader())
    expected = torch.cat([gradient.flatten() for gradient in model.kept]).double()
    assert flow.report.modules["net.4"].calls == 7
    assert flow.report.modules["net.4"].rms == pytest.approx(float((expected**2).mean().sqrt()), rel=1e-6)


def test_a_module_that_returns_its_parameter_gathers_no_hooks() -> None:
    class Prompt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = nn.Parameter(torch.zeros(8))

        def forward(self) -> Tensor:
            return self.p

    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.head = Prompt(), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.prompt())

    model = Classifier(Prompted())
    before = hook_counts(model)
    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours).fit(model, loader())
    assert hook_counts(model) == before
    assert ours[1].report.silent == ("net.prompt",)
    assert ours[1].report.parameters["net.prompt.p"].steps == 7


@pytest.mark.parametrize("first", [True, False])
def test_dead_channels_are_found_wherever_the_rectifier_was_defined(first: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if first:
                self.relu = nn.ReLU()
            self.conv = nn.Conv1d(1, 16, 3, padding=1)
            self.fc = nn.Linear(16, 3)
            if not first:
                self.relu = nn.ReLU()
            nn.init.constant_(self.conv.bias[1:], -100.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.relu(self.conv(x)).mean(-1))

    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(Net(), lr=0.0), loader((1, 10)))
    assert monitor.report.sites["net.relu"].dead_fraction == 15 / 16


@pytest.mark.parametrize("policy", ["norm", "tensor", "value", "agc"])
def test_sparse_gradients_are_clipped_too(policy: str) -> None:
    class Words(Classifier):
        def __init__(self, sparse: bool) -> None:
            net = nn.Module()
            net.embed, net.head = nn.Embedding(20, 4, sparse=sparse), nn.Linear(4, 3)
            net.forward = lambda x: net.head(net.embed((x.abs() * 6).long().clamp(max=19)).mean(1))
            super().__init__(net, lr=0.5)

    def run(sparse: bool) -> tuple[Any, Any]:
        torch.manual_seed(0)
        model, clipper = Words(sparse), GradientClipper(policy=policy, threshold=0.01, summary=False)
        trainer([clipper]).fit(model, loader())
        return clipper.report.optimizers["0-SGD"], model.state_dict()

    (sparse, weights), (dense, expected) = run(True), run(False)
    assert sparse.clipped_steps == dense.clipped_steps == 7
    if policy != "agc":  # its units are the stored rows there, the whole table here
        assert sparse.norm_after == pytest.approx(dense.norm_after, rel=1e-4)
        for key, value in expected.items():
            torch.testing.assert_close(weights[key], value, rtol=1e-4, atol=1e-6)


def test_parameters_thawed_later_are_clipped_and_excluded_ones_counted() -> None:
    class Thaw(Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            pl_module.net[0].requires_grad_(False)

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            pl_module.net[0].requires_grad_(trainer.current_epoch == 1)

    class Keep(Classifier):
        def on_before_zero_grad(self, optimizer: Any) -> None:
            self.norm = {name: float(p.grad.norm()) for name, p in self.named_parameters() if p.grad is not None}

    clipper = GradientClipper(policy="tensor", threshold=1e-3, exclude="net.4.*", summary=False)
    model = Keep(mlp())
    trainer([Thaw(), clipper], max_epochs=2).fit(model, loader())
    assert model.norm["net.0.weight"] <= 1.001e-3
    assert clipper.report.optimizers["0-SGD"].norm_before > model.norm["net.4.weight"] * 0.5
    assert dict(clipper.report.optimizers["0-SGD"].top_parameters)["net.4.weight"] > 0


def test_optimizers_with_an_empty_group_and_of_no_torch_class() -> None:
    class Groups(Classifier):
        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([{"params": []}, {"params": list(self.parameters())}], lr=0.1)

    clipper = GradientClipper(policy="zclip", summary=False)
    trainer([clipper]).fit(Groups(mlp()), loader())
    assert clipper.report.optimizers["0-SGD"].steps == 7

    class Own:
        """What Lightning asks of an optimizer, and nothing more."""

        def __init__(self, parameters: Any) -> None:
            self.param_groups, self.state, self.defaults = [{"params": list(parameters)}], {}, {}

        def zero_grad(self, set_to_none: bool = True) -> None:
            for p in self.param_groups[0]["params"]:
                p.grad = None

        def step(self, closure: Any = None) -> Any:
            return closure()

        def state_dict(self) -> dict[str, Any]:
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    class WithOwn(Classifier):
        def configure_optimizers(self) -> Any:
            return Own(self.parameters())

    ours = monitors(every_n_steps=1, summary=False)
    with pytest.warns(UserWarning, match="Own is not a torch.optim.Optimizer and has no step hooks"):
        trainer(ours).fit(WithOwn(mlp()), loader())
    assert ours[1].report.modules["net.0"].calls == 7


def test_what_another_callback_runs_after_the_batch_is_not_training() -> None:
    class Pictures(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                pl_module.net(torch.full((2, 8), 1e3))

    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([Pictures(), monitor]).fit(Classifier(mlp()), loader())
    assert monitor.report.sites["net.0"].calls == 7


def test_a_second_fit_tells_alerts_and_faults_anew() -> None:
    seen: list[Any] = []
    monitor = FeatureStatsMonitor(on_alert=seen.append, summary=False)
    for fits in (1, 2):
        trainer([monitor]).fit(dying(), loader())
        assert len([alert for alert in seen if alert.kind == "dead"]) == fits
    faulty = Faulty()
    for _ in range(2):
        with pytest.warns(UserWarning, match="raised ValueError: no such thing"):
            trainer([faulty]).fit(Classifier(mlp()), loader())


def test_two_trios_side_by_side_and_keys_that_outlive_the_process() -> None:
    pair = [*monitors(modules="net.0", summary=False), *monitors(modules="net.2", summary=False)]
    run = trainer(pair)
    run.fit(Classifier(mlp()), loader())
    assert {"features/net.0/mean", "features/net.2/mean"} <= set(run.callback_metrics)
    assert "0x" not in FeatureStatsMonitor(modules=lambda name, module: True).state_key
    assert GradientClipMonitor().state_key == GradientClipMonitor().state_key


def test_healthy_recipes_raise_no_alert() -> None:
    """Zero-initialised branches seen at the first step only, a confident last sigmoid, a mean over many positions."""

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
    confident = nn.Sequential(nn.Linear(8, 3), nn.Sigmoid())
    nn.init.constant_(confident[0].bias, 30.0)
    monitor = FeatureStatsMonitor(summary=False, every_n_steps=1)
    trainer([monitor]).fit(Classifier(confident, lr=0.0), loader())
    assert [(a.kind, a.severity) for a in monitor.report.alerts if a.kind == "saturated"] == [("saturated", "info")]


def test_a_module_itself_is_no_selector_and_a_bracketed_name_is_its_own_pattern() -> None:
    with pytest.raises(TypeError, match="got the module Linear itself: give its name"):
        monitors(modules=nn.Linear(2, 2))
    net = nn.Module()
    net.add_module("l[0]", nn.Linear(8, 3))
    net.forward = lambda x: net.get_submodule("l[0]")(x)
    monitor = FeatureStatsMonitor(modules="net.l[0]", summary=False)
    trainer([monitor]).fit(Classifier(net), loader())
    assert list(monitor.report.sites) == ["net.l[0]"]
