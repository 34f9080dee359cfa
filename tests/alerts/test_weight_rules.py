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
from lightning_hooks.diagnostics.gradients.stats import ParameterGradientStats
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


def test_updates_lost_after_convergence_and_its_message() -> None:
    lost = report(lost_fraction=0.9974)
    assert found(UpdatesLost(), replace(lost, total_norm=0.01), report()) == []
    (alert,) = judged(UpdatesLost(), lost)
    assert alert.text == (
        "99.7% of its elements keep their value at a measured step although they have a gradient (limit 99%; 50 to 80% is usual "
        "with such weights). Cause: it is in half precision, and the step (learning rate 1.0e-03) is smaller than the rounding of "
        "its values (about 0.4% in bfloat16). Keep the weights in float32: precision='bf16-mixed'. Raise the learning rate. Use an "
        "optimizer that rounds at random or adds up what is lost (Kahan summation)."
    )


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


def test_update_spike_message() -> None:
    (alert,) = UpdateSpike()(report(update_ratio_max=0.5, update_ratio=0.12575).after([report(3), report(4)]))
    assert (alert.value, alert.threshold) == (0.5, 0.1)  # 20 times what is usual is harmless
    assert alert.seen == (
        "one step changed it by 50% of its size; 0.1% is usual for it (limit 10%), and its learning rate has not risen. "
        "Common causes: a batch of bad data, a gradient that is not clipped, or code of your own that writes the weight."
    )


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


def test_weights_growing_message() -> None:
    *past, now = (report(epoch, weight_norm=norm) for epoch, norm in enumerate((10.0, 10.0, 12.0, 30.0)))
    (alert,) = WeightsGrowing()(now.after(past))
    assert alert.seen == (
        "its norm grew 2.5 times in this window, from 12 to 30 (limit 2 times; 1.2 times in the window before). Common causes: a "
        "learning rate that is too high, a loss that falls as outputs grow, or a weight that nothing holds back."
    )


def with_loss(norms: Any, losses: list[float], lowest: float = 1.0, **setup: Any) -> list[GradientFlowReport]:
    """Reports of a weight with these norms; the last one has these losses."""
    loss = LossReport(20, 1.0, 0.1, 0.5, 2.0, losses[-1], recent=tuple(losses), start=3.0, lowest=lowest)
    made = [report(epoch, weight_norm=norm, setup=setup) for epoch, norm in enumerate(norms)]
    return [*made[:-1], replace(made[-1], loss=loss)]


NOISY = [1.0, 1.1, 0.9, 1.2] * 32
RISEN = [*NOISY[:96], *(loss + 0.3 for loss in NOISY[:32])]


@pytest.mark.parametrize(
    ("norms", "losses", "setup", "alerts"),
    [
        ([10.0, 10.8, 11.7, 12.6], RISEN, {}, [GROWING]),  # by the same factor
        ([10.0, 10.5, 11.5, 13.5], RISEN, {"lr": 1e-2}, [GROWING]),  # faster, under a learning rate that rises
        ([10.0, 10.8, 11.7, 12.6], NOISY, {}, []),  # the loss stands still
        ([10.0, 10.8, 11.7, 12.6], RISEN[-60:], {}, []),  # too few losses
        ([10.0, 12.0, 12.6, 13.0], RISEN, {}, []),  # more and more slowly
        ([10.0, 10.7, 11.4, 12.2], RISEN, {}, []),  # too little
        ([10.0, 9.0, 11.0, 13.0], RISEN, {}, []),
        ([10.8, 11.7, 12.6], RISEN, {}, []),  # too few windows
        ([30.0, 10.0, 10.8, 11.7, 12.6], RISEN, {}, []),  # it has only come back
        ([10.0, 10.8, 11.7, 12.6], RISEN, {"dimensions": 1}, []),
        ([10.0, 10.8, 11.7, 12.6], RISEN, {"starts_at_zero": True}, []),
    ],
)
def test_growth_without_gain(norms: Any, losses: Any, setup: Any, alerts: Any) -> None:
    *past, now = with_loss(norms, losses, **setup)
    assert found(GrowthWithoutGain(), now, *past) == alerts


def test_growth_while_the_loss_falls_again() -> None:
    falling = [*NOISY[:64], *(3.0 - step / 40 for step in range(64))]  # after another task
    *past, now = with_loss([10.0, 10.8, 11.7, 12.6], falling)
    assert found(GrowthWithoutGain(), now, *past) == []
    *past, now = with_loss([10.0, 10.8, 11.7, 12.6], [*NOISY[:64], *falling[:63:-1]])
    assert found(GrowthWithoutGain(), now, *past) == [GROWING]


def test_growth_without_gain_says_what_made_it_sure() -> None:
    *past, now = with_loss([10.0, 10.8, 11.7, 12.6], RISEN)
    (alert,) = GrowthWithoutGain()(now.after(past))
    assert alert.seen.startswith(
        "its norm grew 1.26 times over three windows (limit 1.25 times), no more slowly from one to the next, and the loss "
        "rises: it was 1 at its lowest. 1 of the weights grow so."
    )
