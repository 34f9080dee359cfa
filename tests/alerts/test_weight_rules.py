"""Rules over weights, just below and just above their thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    GradientFlowReport,
    GrowthWithoutGain,
    LossReport,
    ParameterSetup,
    UpdatesLost,
    UpdateSpike,
    WeightsGrowing,
)
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from tests.support.judged import judged

MEASURED = ParameterGradientStats(
    steps=4, norm=1.0, norm_max=2.0, rms=0.1, zero_fraction=0.0, nonfinite_steps=0, missing_steps=0, update_ratio=1e-3,
    weight_norm=10.0, weight_rms=0.1, update_ratio_max=2e-3, moved=True,
)  # fmt: skip
HELD = ParameterSetup(100, 2, True, True, ("0-Adam",), steps=40, lr=1e-3, lr_peak=1e-3)


def report(epoch: int = 5, total_norm: float = 1.0, setup: Any = None, **stats: Any) -> GradientFlowReport:
    parameters, setups = {"a.weight": replace(MEASURED, **stats)}, {"a.weight": replace(HELD, **(setup or {}))}
    return GradientFlowReport(epoch, 40 * epoch, {}, parameters, total_norm, sampled_batches=4, batches=40, setups=setups)


def found(rule: Any, now: GradientFlowReport, *history: GradientFlowReport) -> list[tuple[str, str, str]]:
    return [(alert.kind, alert.site, alert.severity) for alert in judged(rule, now, history)]


LOST = ("updates_lost", "a.weight", "warning")


@pytest.mark.parametrize(
    ("stats", "setup", "alerts"),
    [
        ({"lost_fraction": 0.99}, {}, []),
        ({"lost_fraction": 0.991}, {}, [LOST]),
        ({"lost_fraction": None}, {}, []),
        ({"lost_fraction": 0.991, "steps": 2}, {}, []),
        ({"lost_fraction": 1.0}, {"dimensions": 1}, []),
        ({"lost_fraction": 1.0}, {"lr": 0.0}, []),
        ({"lost_fraction": 1.0}, {"lr": 4e-4}, []),  # low for the moment, by its schedule
        ({"lost_fraction": 1.0}, {"lr": 5e-4}, [LOST]),
    ],
)
def test_updates_lost(stats: Any, setup: Any, alerts: Any) -> None:
    assert found(UpdatesLost(), report(setup=setup, **stats)) == alerts


SPIKE = ("update_spike", "a.weight", "warning")


@pytest.mark.parametrize(
    ("stats", "setup", "before", "alerts"),
    [
        ({"update_ratio_max": 0.11, "update_ratio": 0.0275}, {}, {}, [SPIKE]),
        ({"update_ratio_max": 0.099, "update_ratio": 0.0248}, {}, {}, []),  # harmless
        ({"update_ratio_max": 0.11, "update_ratio": 0.0275}, {}, {"update_ratio": 5.6e-3}, []),  # not 20 times the usual
        ({"update_ratio_max": 0.11, "update_ratio": 0.0275}, {}, {"update_ratio_max": 0.04}, []),  # not the first of this size
        ({"update_ratio_max": 0.11, "update_ratio": 0.05}, {}, {}, []),  # all of this window's are large
        ({"update_ratio_max": 0.11, "update_ratio": 0.11, "steps": 1}, {}, {}, [SPIKE]),
        ({"update_ratio_max": 0.11, "update_ratio": 0.0275}, {"lr": 1.3e-3}, {}, []),  # its rate has risen
        ({"update_ratio_max": 0.11, "update_ratio": 0.0275}, {"dimensions": 1}, {}, []),
        ({"update_ratio_max": None, "update_ratio": None}, {}, {}, []),
    ],
)
def test_update_spike(stats: Any, setup: Any, before: Any, alerts: Any) -> None:
    past = [report(3, setup={"dimensions": 2}, **before), report(4)]
    assert found(UpdateSpike(), report(setup=setup, **stats), *past) == alerts
    assert found(UpdateSpike(), report(setup=setup, **stats), past[0]) == []  # too early to know what is usual


GROWING = ("weights_growing", "a.weight", "warning")


@pytest.mark.parametrize(
    ("norms", "setup", "alerts"),
    [
        ((10, 10, 10, 20.1), {}, [GROWING]),
        ((10, 10, 10, 20.0), {}, []),
        ((10, 10, 20.1), {}, []),  # the first windows
        ((10, 10, 30, 61), {}, []),  # growth comes to an end
        ((10, 10, 20, 41), {}, [GROWING]),
        ((100, 10, 10, 21), {}, []),  # it comes from near zero
        ((10, 10, 10, 21), {"dimensions": 1}, []),
        ((10, 10, 10, 21), {"starts_at_zero": True}, []),
        ((10, 10, 10, 21), {"lr": 2e-3}, []),  # warming up
        ((10, 10, 10, 21), {"lr": None}, []),
        ((10, 10, None, 21), {}, []),
        ((10, 10, 10, None), {}, []),
    ],
)
def test_weights_growing(norms: Any, setup: Any, alerts: Any) -> None:
    *past, now = (report(epoch, weight_norm=norm, setup=setup if epoch == 3 else {}) for epoch, norm in enumerate(norms))
    assert found(WeightsGrowing(), now, *past) == alerts


@pytest.mark.parametrize(
    ("norms", "sign", "level", "alerts"),
    [
        ((10, 11, 12.1, 13.4), 1, 1.0, [GROWING]),
        ((10, 11, 12.1, 13.4), 0, 1.0, []),  # the loss of a policy, or one with other parts
        ((10, 11, 12.1, 13.4), 1, 0.5, []),  # it has not risen
        ((10, 11, 12.1, 12.4), 1, 1.0, []),  # growth slows down
        ((10, 10.5, 11, 11.6), 1, 1.0, []),
    ],
)
def test_weights_that_grow_while_the_loss_rises(norms: Any, sign: int, level: float, alerts: Any) -> None:
    recent = (*[0.5, 0.51] * 64, *[level, level + 0.01] * 32)
    loss = LossReport(64, level, 0.1, 0.4, 2.0, level, recent=recent, start=2.0, lowest=0.505)
    *past, now = (report(epoch, weight_norm=norm) for epoch, norm in enumerate(norms))
    assert found(GrowthWithoutGain(), replace(now, loss=loss, loss_sign=sign), *past) == alerts
