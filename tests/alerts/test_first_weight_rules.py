"""Rules over the weights that a training starts from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    ConstantWeights,
    FirstLossFar,
    GradientFlowReport,
    LearningReport,
    LossReport,
    ModelSetup,
    NotOptimized,
    OneSignWeights,
    ParameterSetup,
)
from lightning_hooks.diagnostics.gradients.stats import ParameterGradientStats

TRAINS = ParameterSetup(100, 2, True, True, ("0-Adam",), 10, 1e-3, 1e-3)
FROZEN = ParameterSetup(100, 2, False, False)
BODY = {"body.weight": TRAINS, "head.weight": FROZEN, "head.bias": FROZEN}


def report(setups: dict[str, ParameterSetup], epoch: int = 0, order: tuple[str, ...] = (), **setup: Any) -> GradientFlowReport:
    return GradientFlowReport(epoch, 40, {}, {}, 1.0, setups=setups, order=order, model_setup=ModelSetup(**setup))


@pytest.mark.parametrize(
    ("constant", "epoch", "found"),
    [({"a": 0.5}, 0, []), ({"a": 0.5, "b": 0.1}, 0, [("a", 2.0)]), ({"a": 0.5, "b": 0.1}, 1, []), ({}, 0, [])],
)
def test_constant_weights(constant: dict[str, float], epoch: int, found: list[Any]) -> None:
    alerts = list(ConstantWeights()(report({}, epoch, constant_weights=constant)))
    assert [(alert.site, alert.value) for alert in alerts] == found
    assert all(alert.severity == "warning" and "are 0.5, and those of b are one number" in alert.seen for alert in alerts)


@pytest.mark.parametrize(
    ("means", "epoch", "found"),
    [({"a": 0.5}, 0, []), ({"a": -0.5, "b": 0.1}, 0, [("a", 2.0)]), ({"a": 0.5, "b": 0.1}, 1, []), ({}, 0, [])],
)
def test_weights_of_one_sign(means: dict[str, float], epoch: int, found: list[Any]) -> None:
    alerts = list(OneSignWeights()(report({}, epoch, one_sign_weights=means)))
    assert [(alert.site, alert.value) for alert in alerts] == found
    text = "all its initial weights are below 0 (mean -0.5), and so are those of 1 more of its layers"
    assert all(alert.severity == "warning" and alert.seen.startswith(text) for alert in alerts)


@pytest.mark.parametrize(
    ("order", "untrained", "setups", "found"),
    [
        (("loss", "head", "body"), ("head",), BODY, ["head"]),  # a loss module has no weights
        (("head", "body"), (), BODY, []),  # it has been trained before
        (("body", "head"), ("head",), BODY, []),  # it is not the last one
        (("head", "body"), ("head",), {**BODY, "body.weight": FROZEN}, []),  # nothing trains
        (("head", "body"), ("head",), {**BODY, "body.weight": replace(TRAINS, optimizers=())}, []),
        (("head", "body"), ("head",), {**BODY, "body.weight": FROZEN, "picture": TRAINS}, []),  # no layer before it trains
    ],
)
def test_frozen_head(order: tuple[str, ...], untrained: tuple[str, ...], setups: Any, found: list[str]) -> None:
    given = report(setups, order=order, untrained=untrained)
    assert [alert.site for alert in NotOptimized()(given) if "the last layer" in alert.message] == found


def test_a_head_that_trains_in_turn_is_not_frozen() -> None:
    stats = ParameterGradientStats(3, 1.0, 1.0, 0.1, 0.0, 0, 0, None)
    given = report(BODY, order=("head", "body"), untrained=("head",))
    assert list(NotOptimized()(replace(given, parameters={"head.weight": stats}))) == []


@pytest.mark.parametrize(
    ("start", "over", "sign", "epoch", "found"),
    [
        (600.0, 20.0, 1, 0, [("loss", 1200.0, "warning")]),  # the mean of the window is 10
        (400.0, 20.0, 1, 0, []),
        (600.0, 20.0, 0, 0, []),  # the loss has other parts
        (600.0, 20.0, 1, 1, []),
        (600.0, None, 1, 0, []),
    ],
)
def test_a_first_loss_far_above_that_of_a_constant(
    start: float, over: float | None, sign: int, epoch: int, found: list[Any]
) -> None:
    loss = LossReport(20, 10.0, 1.0, 5.0, start, 5.0, start=start)
    given = replace(report({}, epoch), loss=loss, learning=LearningReport(over_constant=over), loss_sign=sign)
    assert [(alert.site, alert.value, alert.severity) for alert in FirstLossFar()(given)] == found
    assert not [*FirstLossFar()(given.after([given]))]


def test_a_loss_that_steps_have_raised_does_not_begin_so() -> None:
    """The median of the first eight losses is what steps that are too long make of it; the first one is before any step."""
    loss = LossReport(28, 5e6, 1.0, 1.0, 1e9, 1.0, recent=(2.3, *[5e6] * 27), start=5e6)
    given = replace(report({}), loss=loss, loss_sign=1, learning=LearningReport(over_constant=2.2e6))
    assert not [*FirstLossFar()(given)]
    far = replace(loss, recent=(5e6,) * 28)
    (alert,) = FirstLossFar()(replace(given, loss=far))
    assert alert.message.startswith("it begins at 5e+06, 2.2e+06 times that of the best constant answer")


def test_where_a_loss_began() -> None:
    loss = LossReport(28, 5.0, 1.0, 1.0, 9.0, 1.0, recent=(2.3, *[5.0] * 27), start=5.0)
    assert loss.began == 2.3
    assert replace(loss, recent=(5.0,) * 256).began == 5.0  # the first one is not among them
    assert replace(loss, start=math.nan).began == 2.3
    assert replace(loss, recent=(), start=math.nan).began == math.inf
