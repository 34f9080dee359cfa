"""Optimizers as people write them: that wrap another, that are exchanged, that gain parameters, that step in their own way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import monitors
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import grad_norm

N = 7  # batches of an epoch


class Optimized(Classifier):
    """Keeps the norm over all its optimizers' gradients before clipping at each step."""

    def __init__(self, optimizer: Callable[[Any], Any], net: nn.Module | None = None) -> None:
        torch.manual_seed(0)
        super().__init__(mlp() if net is None else net)
        self.make = optimizer
        self.norms: list[float] = []

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        groups = [group for each in self.trainer.optimizers for group in each.param_groups]
        self.norms.append(grad_norm(p for group in groups for p in group["params"]))

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


class Wrapper(torch.optim.Optimizer):
    """Keeps the one it wraps as ``optimizer``, the name under which Lightning's own wrapper keeps it."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.optimizer = inner
        super().__init__(inner.param_groups, inner.defaults)
        self.param_groups = inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class Exchange(Callback):
    def __init__(self, how: str, batch: int = 0) -> None:
        self.how, self.batch = how, batch

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (1, self.batch):
            if self.how == "setup":
                trainer.strategy.setup_optimizers(trainer)
            else:
                trainer.strategy.optimizers = [torch.optim.Adam(pl_module.parameters(), lr=1e-3)]


@pytest.mark.parametrize(("how", "name"), [("setup", "0-SGD"), ("assigned", "0-Adam")])
def test_exchanged_optimizers_are_followed(how: str, name: str) -> None:
    ours, model = monitors(every_n_steps=1, summary=False, check_every_n_steps=1), Optimized(sgd)
    fit = trainer([Exchange(how), *ours], max_epochs=3, gradient_clip_val=0.1)
    fit.fit(model, loader())
    assert list(ours[2].report.optimizers) == [name]
    stats = ours[2].report.optimizers[name]
    assert (stats.steps, stats.clipped_steps) == (N, N)
    assert stats.norm_before == pytest.approx(sum(model.norms[-N:]) / N, rel=1e-5)
    assert ours[1].report.total_norm == pytest.approx(sum(model.norms[-N:]) / N, rel=1e-5)
    assert {setup.optimizers for setup in ours[1].report.setups.values()} == {(name,)}
    assert all(0 < stats.update_ratio < 1 for key, stats in ours[1].report.parameters.items() if "weight" in key)
    assert not any(len(optimizer._optimizer_step_pre_hooks) for optimizer in fit.optimizers)


def grow(model: Any) -> list[nn.Parameter]:
    model.net.append(nn.Linear(3, 3))
    return list(model.net[-1].parameters())


class Adapted(nn.Module):
    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base, self.a, self.b = base, nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.b(self.a(x))


def adapt(model: Any) -> list[nn.Parameter]:
    model.net[0] = Adapted(model.net[0])
    return [*model.net[0].a.parameters(), *model.net[0].b.parameters()]


def replace(model: Any) -> list[nn.Parameter]:
    model.net[0].weight = nn.Parameter(model.net[0].weight.detach().clone())
    model.trainer.optimizers[0].param_groups[0]["params"][0] = model.net[0].weight
    return []


@pytest.mark.parametrize(
    ("change", "later"),
    [(grow, {"net.5.weight", "net.5.bias"}), (adapt, {"net.0.a.weight", "net.0.b.weight"}), (replace, set())],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("batch", [0, 3])
def test_parameters_that_come_later_are_counted(change: Any, later: set[str], batch: int) -> None:
    class Changing(Optimized):
        def on_train_batch_start(self, data: Any, batch_idx: int) -> None:
            if (self.current_epoch, batch_idx) == (1, batch) and (new := change(self)):
                self.trainer.optimizers[0].add_param_group({"params": new})

    ours, model = monitors(every_n_steps=1, summary=False, check_every_n_steps=1), Changing(sgd)
    before = {name for name, _ in model.named_parameters()}
    trainer(ours, max_epochs=2).fit(model, loader())
    found = ours[1].report.parameters
    assert set(found) == before | later
    assert {found[name].steps for name in before} == {N}
    assert {found[name].steps for name in later} <= {N - batch}
    assert ours[1].report.total_norm == pytest.approx(sum(model.norms[-N:]) / N, rel=1e-5)
    assert ours[2].report.optimizers["0-SGD"].norm_before == pytest.approx(sum(model.norms[-N:]) / N, rel=1e-5)
    assert not any(callback.faults.errors for callback in ours[:3])


class Sam(torch.optim.Optimizer):
    """Steps by two methods of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.base_optimizer = sgd(self.param_groups)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["shift"] = 0.05 * parameter.grad
            parameter.add_(self.state[parameter]["shift"])
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(self.state[parameter]["shift"])
        self.base_optimizer.step()
        self.zero_grad()


def test_steps_that_nobody_saw_are_an_alert() -> None:
    class Sharp(Optimized):
        def __init__(self) -> None:
            super().__init__(Sam)
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            optimizer = self.optimizers(use_pl_optimizer=False)
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.first_step()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.second_step()

    ours = monitors(every_n_steps=1, summary=False)
    trainer(ours, max_epochs=3).fit(Sharp(), loader())
    assert ("not_updated", "0-Sam") in [(alert.kind, alert.site) for alert in ours[1].report.alerts]


class Frozen(torch.optim.Adam):
    """Steps as Adam does, and puts the weights back."""

    def step(self, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = closure()
        before = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]
        super().step()
        with torch.no_grad():
            for parameter, value in zip(self.param_groups[0]["params"], before, strict=True):
                parameter.copy_(value)
        return loss


@pytest.mark.parametrize("first", [False, True])
def test_a_step_of_the_base_class_within_a_step_is_none_of_its_own(first: bool) -> None:
    if first:  # then torch has put hooks around Adam's own step too
        torch.optim.Adam([nn.Parameter(torch.zeros(1))])
    ours, model = monitors(every_n_steps=1, summary=False), Optimized(Frozen)
    trainer(ours).fit(model, loader())
    assert ours[2].report.optimizers["0-Frozen"].steps == N
    assert {ours[1].report.parameters[f"net.{i}.weight"].update_ratio for i in (0, 2, 4)} == {0.0}


def test_of_lbfgs_the_gradients_at_the_step_s_start_count() -> None:
    class Closures(Optimized):
        def __init__(self) -> None:
            super().__init__(lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=4))
            self.first: list[float] = []

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self.open = True

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            super().on_before_optimizer_step(optimizer)
            if self.open:
                self.first.append(self.norms[-1])
            self.open = False

    ours, model = monitors(every_n_steps=1, summary=False), Closures()
    trainer(ours, gradient_clip_val=1e6).fit(model, loader())
    assert len(model.norms) > len(model.first) == N
    assert ours[1].report.total_norm == pytest.approx(sum(model.first) / N, rel=1e-5)
    stats = ours[2].report.optimizers["0-LBFGS"]
    assert stats.norm_before == pytest.approx(sum(model.first) / N, rel=1e-5)
    assert stats.norm_after == pytest.approx(stats.norm_before, rel=1e-6)
    assert (stats.steps, stats.clipped_steps) == (N, 0)


def test_a_norm_beyond_float32_is_logged() -> None:
    class Huge(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return (self.net(batch[0]) * 1e38).sum() / 64

    ours = monitors(every_n_steps=1, summary=False)
    fit = trainer(ours)
    fit.fit(Huge(nn.Linear(8, 1000), lr=1e-45), loader())
    assert 3.4e38 < ours[1].report.total_norm < math.inf
    assert fit.callback_metrics["gradient_flow/total_norm"].item() == ours[1].report.total_norm


def test_an_encoder_that_is_put_back_after_each_step_is_reported_of() -> None:
    class Half(torch.optim.Adam):
        """Leaves the first two layers as they are."""

        def step(self, closure: Any = None) -> Any:
            before = [parameter.detach().clone() for parameter in self.param_groups[0]["params"][:4]]
            loss = super().step(closure)
            with torch.no_grad():
                for parameter, value in zip(self.param_groups[0]["params"], before, strict=False):
                    parameter.copy_(value)
            return loss

    net = nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), nn.Linear(8, 3))
    ours, model = monitors(every_n_steps=1, summary=False), Optimized(lambda parameters: Half(parameters, lr=1e-3), net)
    trainer(ours).fit(model, loader())
    assert [(alert.kind, alert.site) for alert in ours[1].report.alerts] == [("not_updated", "net.0")]
