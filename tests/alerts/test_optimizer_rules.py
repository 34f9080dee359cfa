"""Rules over optimizers, just below and just above their thresholds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import (
    DecayDominates,
    GradientFlowReport,
    GroupSettings,
    LrZero,
    OptimizerSettings,
    OptimizerStats,
    ParameterSetup,
    ScheduleLength,
    SecondMomentStale,
)
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from lightning_hooks.diagnostics.optimizer.table import ScheduleStats
from tests.support.judged import judged
from tests.support.models import Classifier, loader, mlp, trainer

ADAM = GroupSettings(lr=1e-3, lr_peak=1e-3, lr_initial=1e-3, eps=1e-8, betas=(0.9, 0.999))


def report(
    *groups: GroupSettings, name: str = "0-Adam", step: int = 500, planned: int | None = 1000, total_norm: float = 1.0, **stats: Any
) -> GradientFlowReport:
    rates = tuple(group.lr or 0.0 for group in groups)
    found = OptimizerStats(lr=rates, groups=groups, **stats)
    return GradientFlowReport(5, step, {}, {}, total_norm, optimizers={name: found}, planned_steps=planned)


def found(rule: Any, now: GradientFlowReport, *history: GradientFlowReport) -> list[tuple[str, str]]:
    return [(alert.site, alert.severity) for alert in judged(rule, now, history)]


WARNING = [("0-Adam", "warning")]


@pytest.mark.parametrize(("stale", "alerts"), [(0.5, []), (0.51, WARNING), (None, [])])
def test_second_moment_stale(stale: float | None, alerts: Any) -> None:
    now = report(ADAM, stale_fraction=stale)
    assert found(SecondMomentStale(), now, report(ADAM)) == alerts
    assert found(SecondMomentStale(), replace(now, total_norm=0.01), report(ADAM)) == []  # converged
    assert found(SecondMomentStale(), report(replace(ADAM, lr=0.0), stale_fraction=stale)) == []


LOW = replace(ADAM, lr=1e-8, low_steps=50)


@pytest.mark.parametrize(
    ("groups", "kwargs", "alerts"),
    [
        ((LOW,), {}, WARNING),
        ((LOW,), {"step": 899}, WARNING),
        ((LOW,), {"step": 900}, []),  # its end
        ((replace(LOW, low_steps=51),), {"step": 900}, WARNING),  # as at step 899: nobody has repaired it
        ((replace(LOW, low_steps=950),), {"step": 1000}, WARNING),
        ((replace(LOW, low_steps=49),), {}, []),  # the low point of a cycle
        ((LOW,), {"planned": None}, []),
        ((LOW, ADAM), {}, []),  # one group is frozen by its schedule
        ((LOW, replace(LOW, lr=0.0)), {}, WARNING),
        ((ADAM,), {}, []),
        ((replace(LOW, lr=None),), {}, []),
        ((), {}, []),
    ],
)
def test_a_rate_that_fell_to_zero(groups: Any, kwargs: Any, alerts: Any) -> None:
    now = report(*groups, **kwargs)
    assert found(LrZero(), now) == alerts
    assert found(LrZero(), replace(now, total_norm=0.01), report(ADAM)) == []  # converged


RISING = replace(ADAM, lr=9e-5, lr_peak=9e-5)


@pytest.mark.parametrize(
    ("group", "first", "step", "alerts"),
    [
        (RISING, 1e-7, 501, WARNING),
        (RISING, 1e-7, 500, []),
        (replace(RISING, lr=1.1e-4, lr_peak=1.1e-4), 1e-7, 501, []),
        (replace(RISING, lr_peak=1e-3), 1e-7, 501, []),  # a decay
        (RISING, 9e-5, 501, []),  # constant: initial_lr is none
        (replace(RISING, lr=5e-5, lr_peak=9e-5), 1e-7, 501, []),  # past its peak: initial_lr is a factor, as in Noam's schedule
        (replace(RISING, lr_initial=None), 1e-7, 501, []),
        (replace(ADAM, lr=0.0, lr_peak=0.0), 0.0, 501, WARNING),  # zero since the start
        (replace(ADAM, lr=0.0, lr_peak=0.0), 0.0, 100, []),
    ],
)
def test_a_warm_up_that_is_longer_than_the_training(group: GroupSettings, first: float, step: int, alerts: Any) -> None:
    assert found(LrZero(), report(group, step=step), report(replace(group, lr=first), step=10)) == alerts


@pytest.mark.parametrize(
    ("group", "name", "stale", "severities"),
    [
        (ADAM, "0-Adam", 0.9, []),
        (replace(ADAM, eps=0.01), "0-Adam", 0.4, ["info"]),
        (replace(ADAM, eps=0.01), "0-Adam", 0.51, ["warning"]),
        (replace(ADAM, eps=1.0), "0-RMSprop", None, ["info"]),  # as in TensorFlow's recipes
        (replace(ADAM, eps=9e-3), "0-Adam", 0.9, []),
        (replace(ADAM, eps=0.1), "0-Own", None, []),
        (replace(ADAM, betas=(0.999, 0.9)), "0-AdamW", None, ["warning"]),
        (replace(ADAM, betas=(0.9, 0.9)), "0-Adam", None, []),
        (replace(ADAM, betas=(0.0, 0.9)), "0-Adam", None, []),
        (replace(ADAM, betas=(0.98, 0.92, 0.99)), "0-Adan", None, []),
        (replace(ADAM, betas=(0.99, 0.9)), "0-Lion", None, []),
        (GroupSettings(lr=0.1, momentum=0.999), "0-SGD", None, ["warning"]),
        (GroupSettings(lr=0.1, momentum=0.99), "0-SGD", None, []),
        (GroupSettings(lr=0.1, lr_decay=0.1), "0-Adagrad", None, ["warning"]),
        (GroupSettings(lr=0.1, lr_decay=0.01), "0-Adagrad", None, []),
        (GroupSettings(lr=0.1, weight_decay=0.1), "0-SGD", None, ["warning"]),
        (GroupSettings(lr=0.1, weight_decay=0.09), "0-SGD", None, []),
        (replace(ADAM, weight_decay=0.1), "0-NAdam", None, ["warning"]),
        (replace(ADAM, weight_decay=0.9), "0-AdamW", None, []),
        (replace(ADAM, weight_decay=1.0), "0-AdamW", None, ["warning"]),
    ],
)
def test_optimizer_settings(group: GroupSettings, name: str, stale: float | None, severities: list[str]) -> None:
    assert [severity for _, severity in found(OptimizerSettings(), report(group, name=name, stale_fraction=stale))] == severities


@pytest.mark.parametrize(
    ("decay", "gradient", "alerts"),
    [
        (1.0, 0.02, WARNING),  # 0.05 / 0.02 = 2.5
        (1.0, 0.03, []),
        (0.0, 0.02, []),
        (0.009, 1e-5, []),  # a gradient that vanishes
    ],
)
def test_decay_that_outweighs_the_gradient(decay: float, gradient: float, alerts: Any) -> None:
    stats = ParameterGradientStats(3, 1.0, 1.0, gradient, 0.0, 0, 0, 1e-3, weight_rms=0.05)
    setup = ParameterSetup(100, 2, True, True, ("0-Adam",), 10, 1e-3, 1e-3, l2=decay)
    small, large = replace(stats, rms=1e-9), replace(stats, rms=1.0)
    made = replace(
        report(ADAM),
        parameters={"a": stats, "b": small, "c": large, "bias": small, "free": small, "others": small},
        setups={
            "a": setup,
            "b": setup,
            "c": setup,
            "bias": replace(setup, dimensions=1),
            "free": replace(setup, l2=0.0),
            "others": replace(setup, optimizers=("1-Adam",)),
        },
    )
    assert found(DecayDominates(), made) == alerts
    assert found(DecayDominates(), made, replace(made, total_norm=100 * made.total_norm)) == []  # it has converged


COSINE = ScheduleStats("CosineAnnealingLR", "T_max", 10, repeats=True, taken=15, by_epoch=False)
CYCLE = ScheduleStats("OneCycleLR", "total_steps", 1000, repeats=False, taken=1, by_epoch=True)


@pytest.mark.parametrize(
    ("schedule", "step", "alerts"),
    [
        (COSINE, 15, WARNING),
        (replace(COSINE, taken=14), 15, []),
        (replace(COSINE, repeats=False), 15, []),
        (replace(COSINE, by_epoch=True), 500, WARNING),
        (CYCLE, 600, WARNING),
        (replace(CYCLE, by_epoch=False), 600, []),
        (replace(CYCLE, length=899), 600, []),
        (replace(CYCLE, length=1100), 600, WARNING),
        (replace(CYCLE, length=1101), 600, []),
        (CYCLE, 23, []),  # epochs of fewer than four steps
    ],
)
def test_a_schedule_is_made_for_the_steps_that_it_takes(schedule: ScheduleStats, step: int, alerts: Any) -> None:
    assert found(ScheduleLength(), report(ADAM, step=step, schedules=(schedule,))) == alerts


class Scheduled(Classifier):
    """Its scheduler is stepped at the batches or at the epochs."""

    def __init__(self, make: Callable[[Any], Any], interval: str) -> None:
        super().__init__(mlp())
        self.make, self.interval = make, interval

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.01)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": self.make(optimizer), "interval": self.interval}}


def polynomial(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=42)


def cosine(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)


def warm_cosine(optimizer: Any) -> Any:
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine(optimizer)], [2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "interval", "words"),
    [
        (polynomial, "epoch", "its PolynomialLR is made for 42 steps (total_iters), as many as the training has (42), and is "
            "stepped once per epoch: it goes 14.3% of its way."),
        (polynomial, "step", ""),
        (cosine, "step", "its CosineAnnealingLR is made for 6 steps (T_max) and has been stepped 14 times of 42 planned ones: "
            "after 6 of them its learning rate rises again, as slowly as it fell."),
        (warm_cosine, "step", "its CosineAnnealingLR is made for 6 steps (T_max) and has been stepped 12 times of 42 planned "
            "ones: after 6 of them its learning rate rises again, as slowly as it fell."),
        (cosine, "epoch", ""),
    ],
)  # fmt: skip
def test_a_scheduler_that_is_stepped_too_often_or_too_seldom(make: Any, interval: str, words: str) -> None:
    monitor = TrainingMonitor(summary=False)
    trainer([monitor], max_epochs=6).fit(Scheduled(make, interval), loader())
    messages = {alert.message for alert in monitor.alerts if alert.severity != "info"}
    assert {message.replace("41 times", "14 times").replace("40 times", "12 times") for message in messages} == {words} - {""}
