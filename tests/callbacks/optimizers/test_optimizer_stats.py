"""Weights, updates and second moments, against a slow loop in float64 over copies of everything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import GradientFlowMonitor
from lightning_hooks.diagnostics.reports import GradientFlowReport
from tests.support.models import Classifier, loader, mlp, trainer

Optim = torch.optim
pytestmark = pytest.mark.usefixtures("all_detailed")


class Slow(Callback):
    """Copies weights, gradients and Adam's state around every step that is taken."""

    def __init__(self) -> None:
        self.steps: list[dict[str, dict[str, Any]]] = []  # of each optimizer step: parameter to what was seen

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        names = {id(parameter): name for name, parameter in pl_module.named_parameters()}

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:
            self.weights = {id(p): p.detach().clone() for group in optimizer.param_groups for p in group["params"]}

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:
            seen = {}
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        state = optimizer.state.get(p, {})
                        seen[names[id(p)]] = {
                            "before": double(self.weights[id(p)]),
                            "after": double(p),
                            "gradient": double(p.grad),
                            "v": double(state["exp_avg_sq"]) if "exp_avg_sq" in state else None,
                            "step": float(state["step"]) if "step" in state else None,
                            "group": {**group, "params": None},
                        }
            self.steps.append(seen)

        for optimizer in trainer.optimizers:
            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)


def double(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().to(torch.float64, copy=True).numpy()


def expected_parameters(steps: list[dict[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    """What the report is to say of a parameter, if every one of these steps is measured."""
    seen = [step[name] for step in steps if name in step]
    norms = [np.linalg.norm(s["before"]) for s in seen]
    changes = [np.linalg.norm(s["after"] - s["before"]) for s in seen]
    ratios = [change / norm for change, norm in zip(changes, norms, strict=True) if norm]
    return {
        "weight_norm": norms[-1],
        "weight_rms": math.sqrt(np.mean(seen[-1]["before"] ** 2)),
        "update_ratio": np.mean(ratios) if ratios else None,
        "update_ratio_max": max(ratios) if ratios else None,
        "moved": any(change > 0 for change in changes),
    }


def expected_optimizer(steps: list[dict[str, dict[str, Any]]]) -> dict[str, float | None]:
    """What the report is to say of an optimizer that took these steps, all measured."""
    stale, with_gradient = 0, 0
    for step in steps:
        for s in step.values():
            if s["v"] is None:
                continue
            group, g = s["group"], s["gradient"].ravel()
            if group["weight_decay"] and not group.get("decoupled_weight_decay"):
                g = g + group["weight_decay"] * s["before"].ravel()
            v = s["v"].ravel() / (1 - float(group["betas"][1]) ** s["step"])
            stale += int(((v < group["eps"] ** 2) & (g != 0)).sum())
            with_gradient += int((g != 0).sum())
    return {"stale_fraction": stale / with_gradient if with_gradient else None}


def assert_equal(report: GradientFlowReport, steps: list[dict[str, dict[str, Any]]], rel: float = 1e-4) -> None:
    for name, stats in report.parameters.items():
        for stat, value in expected_parameters(steps, name).items():
            assert getattr(stats, stat) == (pytest.approx(value, rel=rel) if isinstance(value, float) else value), (name, stat)
    for place, (name, stats) in enumerate(report.optimizers.items()):
        own = {p for p, setup in report.setups.items() if name in setup.optimizers}
        for stat, value in expected_optimizer([s for s in steps if own & s.keys()]).items():
            assert getattr(stats, stat) == (None if value is None else pytest.approx(value, rel=rel, abs=1e-12)), (place, stat)


class Stateless(Optim.Optimizer):
    """Steps by the sign of the gradient, keeps nothing."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        if loss is not None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad.sign())
        return loss


MADE: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: Optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: Optim.Adam(p, lr=1e-2, foreach=False),
    "foreach": lambda p: Optim.Adam(p, lr=1e-2, foreach=True),
    "fused": lambda p: Optim.AdamW(p, lr=1e-2, fused=True, weight_decay=0.1),
    "amsgrad": lambda p: Optim.AdamW(p, lr=1e-2, amsgrad=True),
    "large eps": lambda p: Optim.Adam(p, lr=1e-2, eps=0.02),
    "coupled decay": lambda p: Optim.Adam(p, lr=1e-4, weight_decay=0.1),
    "maximize": lambda p: Optim.Adam(p, lr=1e-4, weight_decay=0.1, maximize=True),
    "tensor rate": lambda p: Optim.Adam(p, lr=torch.tensor(1e-2)),
    "nadam": lambda p: Optim.NAdam(p, lr=1e-2),
    "radam": lambda p: Optim.RAdam(p, lr=1e-2),
    "lbfgs": lambda p: Optim.LBFGS(p, lr=0.1, max_iter=2),
    "stateless": lambda p: Stateless(p, lr=1e-3),
}


@pytest.mark.parametrize("made", MADE)
def test_every_optimizer(made: str) -> None:
    torch.manual_seed(0)
    model, slow = Classifier(mlp(), optimizer=lambda p, lr: MADE[made](p)), Slow()
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([slow, monitor]).fit(model, loader())
    (stats,) = monitor.report.optimizers.values()
    adam = made not in ("sgd", "lbfgs", "stateless")
    assert (stats.stale_fraction is not None) == adam
    assert len(slow.steps) == 7
    if made == "lbfgs":
        return  # gradients are read once, at the weights that the step starts from
    if made == "maximize":
        for seen in (seen for step in slow.steps for seen in step.values()):
            seen["gradient"] = -seen["gradient"]
    # What decay adds to the gradient is read of the weights after the update.
    assert_equal(monitor.report, slow.steps, rel=2e-3 if slow.steps[0]["net.0.bias"]["group"].get("weight_decay") == 0.1 else 1e-4)
    if made == "large eps":
        assert 0.2 < stats.stale_fraction < 1


def test_accumulation_and_a_window_without_a_step() -> None:
    torch.manual_seed(0)
    slow, monitor = Slow(), GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([slow, monitor], accumulate_grad_batches=3).fit(Classifier(mlp(), lr=0.01, optimizer=Optim.Adam), loader())
    assert len(slow.steps) == 3
    assert_equal(monitor.report, slow.steps)

    class Never(Classifier):
        def __init__(self) -> None:
            super().__init__(mlp())
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            if self.current_epoch == 0:
                self.optimizers().step()  # type: ignore[union-attr]

    trainer([never := GradientFlowMonitor(every_n_steps=1, summary=False)], max_epochs=2).fit(Never(), loader())
    stats = never.report.optimizers["0-SGD"]
    assert (stats.lr, stats.stale_fraction) == ((0.1,), None)
    assert all(p.weight_norm is None and p.moved is None for p in never.report.parameters.values())


def test_two_optimizers_groups_and_rates() -> None:
    class Two(Classifier):
        def __init__(self) -> None:
            super().__init__(mlp())
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
            for optimizer in self.optimizers():  # type: ignore[union-attr]
                optimizer.zero_grad()
                self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
                optimizer.step()
            for scheduler in self.lr_schedulers():  # type: ignore[union-attr]
                scheduler.step()

        def configure_optimizers(self) -> Any:
            first, second, last = (list(self.net[place].parameters()) for place in (0, 2, 4))
            one = Optim.Adam([{"params": first}, {"params": second, "lr": 0.002}], lr=0.01)
            two = Optim.SGD(last, lr=0.1, momentum=0.5)
            return [one, two], [Optim.lr_scheduler.ExponentialLR(each, 0.5) for each in (one, two)]

    torch.manual_seed(0)
    slow, monitor = Slow(), GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([slow, monitor]).fit(Two(), loader())
    assert_equal(monitor.report, slow.steps)
    one, two = monitor.report.optimizers.values()
    assert list(monitor.report.optimizers) == ["0-Adam", "1-SGD"]
    assert one.lr == pytest.approx((0.01 / 2**7, 0.002 / 2**7))
    assert [group.lr_peak for group in (*one.groups, *two.groups)] == [0.01, 0.002, 0.1]
    assert one.groups[0].betas == (0.9, 0.999)
    assert (two.groups[0].momentum, two.groups[0].eps, two.groups[0].lr_initial) == (0.5, None, 0.1)
    assert monitor.report.planned_steps is None


@pytest.mark.parametrize("lr", [3e-2, 1e-3, 1e-5])
def test_updates_lost_in_bfloat16(lr: float) -> None:
    torch.manual_seed(0)
    model = Classifier(mlp().bfloat16(), lr=lr, optimizer=Optim.SGD)
    model.net.register_forward_pre_hook(lambda module, inputs: inputs[0].bfloat16())
    slow, monitor = Slow(), GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([slow, monitor]).fit(model, loader())
    found = []
    for name, stats in monitor.report.parameters.items():
        seen = [step[name] for step in slow.steps]
        had = sum(int((s["gradient"] != 0).sum()) for s in seen)
        lost = sum(int(((s["gradient"] != 0) & (s["before"] == s["after"])).sum()) for s in seen)
        assert stats.lost_fraction == pytest.approx(lost / had)
        found.append(lost / had)
    assert (min(found) < 0.3, max(found) > 0.9) == (lr > 1e-3, lr < 1e-4) or lr == 1e-3
    assert_equal(monitor.report, slow.steps, rel=1e-2)
