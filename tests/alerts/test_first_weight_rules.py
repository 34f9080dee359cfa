"""Rules over the weights that a training starts from."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    ConstantWeights,
    FeatureReport,
    FirstLossFar,
    GradientFlowReport,
    LargeLayers,
    LearningReport,
    LossReport,
    ModelSetup,
    NotOptimized,
    OneSignWeights,
    ParameterSetup,
)
from lightning_hooks.diagnostics.features.table import FeatureStats

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
    ("gains", "outputs", "epoch", "found"),
    [
        ([4.1, 4.2, 0.6], 2.1, 0, [("a", pytest.approx(4.1), "warning")]),
        ([0.6, 4.1, 4.2], 2.1, 0, [("b", pytest.approx(4.1), "warning")]),
        ([3.9, 3.9, 50.0], 2.1, 0, []),
        ([4.1, 4.2, 0.6], 1.9, 0, []),  # the forward scales weights down
        ([4.1, 4.2, 0.6], 2.1, 1, []),
        ([4.1, 4.2], 2.1, 0, []),
        ([4.1, 4.2, 0.0], 2.1, 0, []),  # two with a gain that is known
        ([4.1, 4.2, math.inf], 2.1, 0, []),
    ],
)
def test_layers_that_start_large(gains: list[float], outputs: float, epoch: int, found: list[Any]) -> None:
    stats = FeatureStats(4, 100, 0.0, outputs, -2.0, 2.0, outputs, 0.0, 0.0)
    initial = dict(zip("abc", gains, strict=False))
    given = FeatureReport(epoch, 40, dict.fromkeys("abc", stats), (), 4, 40, initial_gains=initial)
    assert [(alert.site, alert.value, alert.severity) for alert in LargeLayers()(given)] == found


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
    given = report(setups, order=order, made=dict.fromkeys(untrained, "zeros"))
    assert [alert.site for alert in NotOptimized()(given) if "the last layer" in alert.message] == found


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
