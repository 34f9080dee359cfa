"""The rules over the loss, on losses that were made up; and what their alerts follow from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_hooks.alerts import (
    Alert,
    GradientFlowReport,
    LearnedByHeart,
    LearningReport,
    LossDiverging,
    LossMaximized,
    LossNonfinite,
    LossPlateau,
    LossReport,
    LossSpiking,
    LossWithoutBound,
    Overfitting,
    TargetsRecede,
    ValidationApart,
    WatchedBackwards,
)
from lightning_hooks.diagnostics.loss.report import ValidationLoss
from lightning_hooks.diagnostics.loss.table import LossTable
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats
from lightning_hooks.diagnostics.setup.checks import ModelSetup

NAN = math.nan


def reports(losses: Sequence[float], window: int, epoch: int = 10_000, optimized: bool = True) -> list[GradientFlowReport]:
    """The reports of a training with these losses."""
    table, made, number = LossTable(), [], 0
    table.optimized = optimized
    for step, loss in enumerate(losses):
        table.step = step
        table.add(torch.tensor(loss, dtype=torch.float64))
        table.end_batch(number, step % epoch)
        number += 1
        if number == window or (step + 1) % epoch == 0:
            made.append(GradientFlowReport(step // epoch, step + 1, {}, {}, 1.0, loss=table.read(table.pack())))
            table.reset()
            number = 0
    return made


def falling(n: int, noise: float = 0.1, seed: int = 0) -> Any:
    """A healthy loss: from 2.3 towards 0.3."""
    rng = np.random.default_rng(seed)
    return (0.3 + 2.0 * np.exp(-np.arange(n) / 60)) * (1 + noise * rng.standard_normal(n))


def found(rule: Any, made: Sequence[GradientFlowReport]) -> list[tuple[int, Alert]]:
    return [(place, alert) for place, report in enumerate(made) for alert in rule(report)]


# Spikes.


@pytest.mark.parametrize("window", [20, 50, 200, 600])
@pytest.mark.parametrize("at", [198, 199, 200, 215, 397])
def test_a_spike_is_found_once_whatever_the_windows(window: int, at: int) -> None:
    losses = falling(600)
    losses[at : at + 4] = 3.0
    ((place, alert),) = found(LossSpiking(), reports(losses, window))
    assert place == (at + 2) // window  # at the window in which it lasts 3 batches
    assert (alert.kind, alert.site, alert.severity, alert.batch) == ("loss_spike", "loss", "warning", at)
    before = losses[at - 128 : at]
    assert alert.value == pytest.approx((3.0 - before.mean()) / (before.max() - before.mean()))


@pytest.mark.slow
@pytest.mark.parametrize("window", [20, 50, 200])
@pytest.mark.parametrize("case", ["healthy", "one batch", "two batches", "small", "too early", "heavy tails", "manual", "new data"])
def test_what_is_no_spike(case: str, window: int) -> None:
    losses, epoch = falling(800), 10_000
    if case == "one batch":
        losses[300] = 50.0
    elif case == "two batches":
        losses[300:302] = 50.0
    elif case == "small":  # lost next to nothing of what was gained
        losses[300:] = 1e-3 * (1 + 0.1 * np.random.default_rng(1).standard_normal(500))
        losses[500:510] = 0.05
    elif case == "too early":
        losses[50:60] = 30.0
    elif case == "heavy tails":
        losses *= np.random.default_rng(1).pareto(1.5, 800) + 1
    elif case == "manual":
        losses[300:310] = 3.0
    elif case == "new data":
        losses[400:] += falling(400)
        epoch = 400
    assert not found(LossSpiking(), reports(losses, window, epoch, optimized=case != "manual"))


# Divergence.


@pytest.mark.parametrize("speed", [0.01, 0.05])
def test_a_loss_that_rises_again(speed: float) -> None:
    losses = falling(500)
    losses[300:] += speed * np.arange(200)
    (_, alert), *_ = found(LossDiverging(), reports(losses, 100))
    assert (alert.kind, alert.site, alert.severity) == ("loss_diverging", "loss", "warning")
    assert alert.value > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("window", [20, 50, 200, 800])
@pytest.mark.parametrize("case", ["healthy", "noise", "heavy tails", "leaps and falls again", "manual", "rises from the start"])
def test_what_does_not_diverge(case: str, window: int) -> None:
    rng = np.random.default_rng(3)
    losses = falling(800)
    if case == "noise":
        losses = 1 + 0.3 * rng.standard_normal(800)
    elif case == "heavy tails":
        losses *= rng.pareto(1.5, 800) + 1
    elif case == "leaps and falls again":
        losses[400:] += falling(400)
    elif case == "manual":
        losses[400:] += 0.01 * np.arange(400)
    elif case == "rises from the start":  # as temporal difference errors do while a policy learns
        losses = 0.1 + 0.01 * np.arange(800) * (1 + 0.1 * rng.standard_normal(800))
    assert not found(LossDiverging(), reports(losses, window, optimized=case != "manual"))


# What is not finite.


@pytest.mark.parametrize(
    ("sign", "maximize", "optimized", "alerts"),
    [
        (1, False, True, 0),
        (1, True, True, 1),
        (-1, False, True, 1),
        (-1, True, True, 0),
        (0, True, True, 0),  # a reward
        (-1, False, False, 0),  # an adversary's, by hand
    ],
)
def test_a_distance_that_is_made_larger(sign: int, maximize: bool, optimized: bool, alerts: int) -> None:
    (report,) = reports([1.0] * 8, 8, optimized=optimized)
    optimizers = {"0-Adam": OptimizerStats(groups=(GroupSettings(maximize=maximize),))}
    made = list(LossMaximized()(replace(report, loss_sign=sign, optimizers=optimizers)))
    both = {"0-Adam": OptimizerStats(groups=(GroupSettings(maximize=True), GroupSettings()))}  # a min-max problem
    assert not list(LossMaximized()(replace(report, loss_sign=sign, optimizers=both)))
    assert [(alert.kind, alert.site, alert.severity) for alert in made] == [("loss_diverging", "loss", "warning")] * alerts
    assert all(("0-Adam has maximize=True" if maximize else "there is a minus before it") in alert.seen for alert in made)


def test_a_loss_that_is_not_finite() -> None:
    losses = [1.0] * 7 + [NAN] + [1.0] * 5 + [math.inf] * 2
    ((_, alert),) = found(LossNonfinite(), reports(losses, 15))
    assert (alert.kind, alert.severity, alert.batch, alert.since_step, alert.value) == ("loss_nonfinite", "critical", 7, 7, 3)
    assert alert.seen == (
        "the loss was NaN or infinite in 3 of 15 training batches, first in batch 7 of the epoch, at global step 7."
    )
    assert not found(LossNonfinite(), reports([1.0] * 10, 5))


@pytest.mark.parametrize(
    ("losses", "severity"),
    [([1.0, math.inf, 1.0, 1.0], "info"), ([1.0, 1.0, math.inf, NAN], "info"), ([1.0, math.inf, NAN, NAN], "critical")],
)
def test_under_a_loss_scaler_it_is_an_info_if_the_loss_is_finite_as_often(losses: list[float], severity: str) -> None:
    (report,) = reports(losses, 4)
    assert report.loss is not None
    ((_, alert),) = found(LossNonfinite(), [replace(report, loss=replace(report.loss, scaled=True))])
    assert alert.severity == severity
    assert ("; the loss scaler skips such steps" in alert.seen) is (severity == "info")


# Infos.


def test_a_loss_that_stands_still() -> None:
    noise = 0.05 * np.random.default_rng(0).standard_normal(400)
    made = reports((2.3 + noise).tolist(), 100)
    (alert,) = LossPlateau()(made[3].after(made[:3]))
    assert (alert.kind, alert.severity) == ("loss_plateau", "info")
    assert not list(LossPlateau()(made[2].after(made[:2])))  # three windows
    assert not list(LossPlateau(min_steps=401)(made[3].after(made[:3])))
    for other in (falling(400), np.concatenate((falling(100), 0.2 + noise[:300])), 2.3 - np.arange(400) / 500):
        learning = reports(other, 100)
        assert not list(LossPlateau()(learning[3].after(learning[:3])))


@pytest.mark.parametrize(
    ("validations", "training", "expected"),
    [
        ([0.50, 0.55, 0.60, 0.70], [0.5, 0.4, 0.3, 0.2], 0.4),
        ([0.30, 0.50, 0.55, 0.60, 0.70], [0.6, 0.5, 0.4, 0.3, 0.2], 0.4),  # of the last four
        ([0.50, 0.55, 0.60], [0.5, 0.4, 0.3], None),
        ([0.50, 0.55, 0.54, 0.70], [0.5, 0.4, 0.3, 0.2], None),
        ([0.500, 0.501, 0.502, 0.503], [0.5, 0.4, 0.3, 0.2], None),
        ([0.50, 0.55, 0.60, 0.70], [0.5, 0.6, 0.7, 0.8], None),  # it diverges
        ([0.50, 0.55, 0.60, NAN], [0.5, 0.4, 0.3, 0.2], None),
    ],
)
def test_overfitting(validations: list[float], training: list[float], expected: float | None) -> None:
    pairs = tuple(map(ValidationLoss, validations, training))
    report = GradientFlowReport(3, 40, {}, {}, 1.0, loss=LossReport(10, 0.2, 0.1, 0.1, 0.3, 0.2, validations=pairs))
    alerts = list(Overfitting()(report))
    if expected is None:
        assert alerts == []
        return
    assert [(a.kind, a.site, a.severity) for a in alerts] == [("overfitting", "validation loss", "info")]
    assert alerts[0].value == pytest.approx(expected)
    assert alerts[0].seen == (
        "the validation loss rose 3 times in a row, from 0.5 to 0.7, while the training loss fell from 0.5 to 0.2."
    )


@pytest.mark.parametrize(
    ("validations", "training", "over", "found"),
    [
        ([2.32, 2.40, 2.42], 2.18, None, True),
        ([2.32, 2.40, 2.42], 2.20, None, False),  # training is hardly better than at its start
        ([2.32, 2.40, 2.36], 2.18, None, False),  # nor is validation worse than at the first one
        ([2.32, 2.42], 2.18, None, False),
        ([2.30, 2.25, 2.42, 2.60], 2.18, None, False),  # it was better than guessing once: a model that overfits
        ([1.10, 1.20, 1.30], 0.9, None, False),  # pretrained
        ([2.32, 2.40, 2.42], 2.18, 0.8, False),  # of guessing, 2.5
        ([2.60, 2.70, 2.80], 2.18, 0.8, True),
    ],
)
def test_learned_by_heart(validations: list[float], training: float, over: float | None, found: bool) -> None:
    pairs = tuple(ValidationLoss(loss, training) for loss in validations)
    loss = LossReport(10, 2.0, 0.1, 1.8, 2.1, 2.0, validations=pairs, start=2.31)
    report = GradientFlowReport(3, 40, {}, {}, 1.0, loss=loss, learning=LearningReport(over_constant=over))
    alerts = list(LearnedByHeart()(report))
    assert [(alert.kind, alert.severity) for alert in alerts] == [("overfitting", "warning")] * found
    assert not list(LearnedByHeart()(replace(report, loss=replace(loss, optimized=False))))
    better = replace(report, loss=replace(loss, validations=(ValidationLoss(1.0, 1.0),)))
    assert not list(LearnedByHeart()(report.after([better])))


@pytest.mark.parametrize(
    ("watched", "mode", "losses", "text"),
    [
        ((0.5, 0.6, 0.7, 0.8), "min", (4, 3, 2, 1), "it rose steadily over the last 4 validations, from 0.5 to 0.8, while"),
        ((0.9, 0.5, 0.6, 0.7, 0.8), "min", (5, 4, 3, 2, 1), "it rose steadily over the last 4 validations, from 0.5 to 0.8, while"),
        ((4, 3, 2, 1), "max", (4, 3, 2, 1), "it fell steadily over the last 4 validations, from 4 to 1, while"),
        ((0.5, 0.6, 0.7, 0.8), "max", (4, 3, 2, 1), ""),
        ((0.5, 0.6, 0.6, 0.8), "min", (4, 3, 2, 1), ""),  # as an accuracy that is as high as it can be
        ((0.5, 0.6, 0.7, 0.8), "min", (4, 3, 2, 2), ""),  # as a loss that rises since the model overfits
        ((0.6, 0.7, 0.8), "min", (3, 2, 1), ""),
        ((NAN, NAN, NAN, NAN), "min", (4, 3, 2, 1), ""),
        ((0.5, 0.6, 0.7, 0.8), "", (4, 3, 2, 1), ""),
    ],
)
def test_a_metric_that_is_watched_the_wrong_way(watched: Sequence[float], mode: str, losses: Sequence[float], text: str) -> None:
    validations = tuple(ValidationLoss(loss, 1.0, value) for loss, value in zip(losses, watched, strict=True))
    loss = LossReport(10, 2.0, 0.1, 1.8, 2.1, 2.0, validations=validations, watched=("val_score", mode))
    alerts = list(WatchedBackwards()(GradientFlowReport(3, 40, {}, {}, 1.0, loss=loss)))
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [("settings", "val_score", "warning")] * bool(text)
    for alert in alerts:
        assert alert.message.startswith(text)
        assert alert.advice == (f"Set mode={'max' if mode == 'min' else 'min'!r} where 'val_score' is monitored",)


@pytest.mark.parametrize(
    ("start", "last", "over", "found"),
    [
        (50.0, -60.0, 1.2, True),
        (50.0, -40.0, 1.2, False),  # not far below 0
        (-50.0, -60.0, 1.2, False),  # it never was above
        (50.0, -60.0, 0.8, False),  # the targets are learned too
        (50.0, -60.0, None, False),
    ],
)
def test_a_loss_that_falls_without_bound(start: float, last: float, over: float | None, found: bool) -> None:
    loss = LossReport(64, 0.0, 1.0, last, start, last, recent=(last,) * 64, start=start)
    given = GradientFlowReport(0, 64, {}, {}, 1.0, loss=loss, learning=LearningReport(over_constant=over))
    alerts = [*LossWithoutBound()(given)]
    assert [alert.severity for alert in alerts] == ["warning"] * found
    assert all("fallen from 50 to -60, while the distance" in alert.message for alert in alerts)
    assert not [*LossWithoutBound()(replace(given, loss=replace(loss, optimized=False)))]


@pytest.mark.parametrize(
    ("levels", "found"),
    [
        ([1.1, 1.5, 3.5], True),
        ([0.9, 2.0, 3.1], True),
        ([1.5, 0.2, 0.3, 4.4], False),
        ([0.9, 2.0, 2.9], False),  # less than three times as far as the best constant answer
        ([2.0, 4.0, 5.9], False),  # less than three times as far as in the first window
        ([2.0, 4.0, 5.0, 6.1], True),
        ([2.0, 9.0, 5.0, 6.1], False),  # it comes back
        ([1.0, 6.0, 6.1, 6.2], False),  # it stands still
        ([2.0, 4.0, 5.0, 9.0, 6.1], False),
        ([1.1, 3.5], False),
        ([1.1, None, 3.5], False),
    ],
)
def test_outputs_that_move_away_from_their_targets(levels: list[float | None], found: bool) -> None:
    loss = LossReport(64, -2.0, 1.0, -3.0, -1.0, -2.0, recent=(-2.0,) * 64, start=-1.0, optimized=False)
    windows = [
        GradientFlowReport(n, 64 * n + 64, {}, {}, 1.0, loss=loss, learning=LearningReport(over_constant=level, constant_loss=0.7))
        for n, level in enumerate(levels)
    ]
    last = replace(windows[-1], learning=LearningReport(over_constant=levels[-1], constant_loss=0.01))
    assert not [*TargetsRecede()(last.after(windows[:-1]))]  # the targets have become alike
    alerts = [*TargetsRecede()(windows[-1].after(windows[:-1]))]
    limit = 3.0 * max(1.0, levels[0] or 0.0)
    assert [(a.kind, a.severity, a.value, a.threshold) for a in alerts] == [
        ("loss_diverging", "warning", levels[-1], limit)
    ] * found


@pytest.mark.parametrize(
    ("validation", "latest", "fields", "found"),
    [
        (2.6, 1.9, {}, True),
        (2.4, 1.9, {}, False),  # as averaged weights may be
        (2.6, 2.0, {}, True),
        (2.45, 2.0, {}, False),  # training is hardly better
        (2.6, 1.9, {"epoch": 1}, True),
        (2.6, 1.9, {"epoch": 2}, False),  # it may have learned by heart
        (2.6, 1.9, {"loss_sign": 0}, False),
        (2.6, 1.9, {"learning": LearningReport()}, False),
        (2.6, 1.9, {"model_setup": ModelSetup(slowest_momentum=0.04)}, False),  # 0.96 ** 64 = 7 %
        (2.6, 1.9, {"model_setup": ModelSetup(slowest_momentum=0.05)}, True),  # 4 %
    ],
)
def test_validation_losses_worse_than_guessing_in_the_first_two_epochs(
    validation: float, latest: float, fields: dict[str, Any], found: bool
) -> None:
    validations = (ValidationLoss(2.6, 1.9), ValidationLoss(validation, 2.0))
    loss = LossReport(64, 2.0, 0.1, 1.8, 2.3, latest, recent=(latest,) * 64, validations=validations)
    given = GradientFlowReport(0, 64, {}, {}, 1.0, loss=loss, learning=LearningReport(constant_loss=2.22), loss_sign=1)
    given = replace(given, **fields)
    alerts = [*ValidationApart()(given)]
    for known in ((ValidationLoss(2.2, 1.9), validations[1]), validations[1:], (ValidationLoss(3.0, 1.9), validations[1])):
        # One bad validation, as after a bad step; or one that is on its way down.
        assert not [*ValidationApart()(replace(given, loss=replace(loss, validations=known)))]
    poor = tuple(ValidationLoss(2 * one.loss, 2.3) for one in validations)  # training is no better than guessing either
    assert not [*ValidationApart()(replace(given, loss=replace(loss, recent=(2.3,) * 64, validations=poor)))]
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [
        ("validation_shift", "validation loss", "warning")
    ] * found
