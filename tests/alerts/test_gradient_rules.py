"""Rules over gradient-flow reports, just below and just above their thresholds."""

import math
from dataclasses import replace

import pytest

from lightning_hooks.alerts import (
    Exploding,
    Missing,
    NonfiniteGradients,
    ParameterSetup,
    Stretching,
    Vanishing,
    Zero,
)
from lightning_hooks.diagnostics.loss.report import LossReport
from tests.alerts.conftest import PARAMETER
from tests.support.judged import judged


def rms(*values):
    return [{"rms": value} for value in values]


@pytest.mark.parametrize(
    ("values", "sites"),
    [
        ([0.1, 0.1, 0.1], []),
        ([1.01e-5, 1e-2, 0.1], []),
        ([0.99e-5, 1e-2, 0.1], ["site1", "site0"]),  # the first is where it is lost
        ([0.99e-5, 1e-4, 1e-3, 1e-2, 0.1], ["site0"]),  # little by little
        ([1e-6, 1e-6, 0.1], ["site2", "site0", "site1"]),
        ([0.1, 1e-9], []),  # a later module may have less
        ([1.1e-12, 1.1e-12], []),
        ([0.9e-12, 0.9e-12], ["site0", "site1"]),
        ([0.0, math.nan, 0.1], []),  # these have rules of their own
        ([1e-6, 0.0, math.nan, 0.1], ["site3", "site0"]),
        ([1e-6, 0.1, 1e-6], ["site1", "site0"]),  # against the largest of those after it
        ([], []),
    ],
)
def test_vanishing(gradients, values, sites):
    alerts = list(Vanishing()(gradients(*rms(*values))))
    assert [alert.site for alert in alerts] == sites
    assert all((alert.kind, alert.severity, alert.epoch, alert.step) == ("vanishing", "warning", 3, 120) for alert in alerts)


@pytest.mark.parametrize(
    ("optimizer", "ratio", "decay", "sites"),
    [
        ("0-SGD", 1e-3, 0.0, []),
        ("0-SGD", 0.9e-3, 0.0, ["site0"]),
        ("0-SGD", 1e-3, 5e-4, ["site0"]),  # half of it is the decay's
        ("0-Adam", 1e-3, 0.0, ["site0"]),  # whose steps do not depend on the gradient's size
        ("0-SGD", None, 0.0, ["site0"]),
    ],
)
def test_a_weight_that_moves_with_its_gradient_learns(gradients, optimizer, ratio, decay, sites):
    given = gradients(*rms(1e-6, 1e-4, 1e-3, 1e-2, 1e-1), parameters=({"update_ratio": ratio},))
    (stats,) = given.parameters.values()
    held = ParameterSetup(10, 2, True, True, (optimizer,), 10, 0.1, 0.1, decay)
    given = replace(given, parameters={f"{site}.weight": stats for site in given.modules}, setups={"site0.weight": held})
    assert [alert.site for alert in Vanishing()(given)] == sites


def test_a_layer_is_not_affected_whose_predecessors_are_not(gradients):
    """A healthy transformer's queries and keys get next to nothing; its embeddings, before them, plenty."""
    assert list(Vanishing()(gradients(*rms(1.0, 1e-9, 1.0)))) == []
    assert [alert.site for alert in Vanishing()(gradients(*rms(1e-9, 1e-7, 1.0)))] == ["site2", "site0", "site1"]


def test_what_falls_through_a_part_without_parameters_has_not_vanished(gradients):
    """The gradient of log(sigmoid) is huge at the sigmoid's output where it is nearly 0, and of the usual size before it."""
    report = gradients(*rms(1e-3, 1e-3, 900.0), parameters=[{}, {}])
    held = dict(zip(("site0.weight", "site1.weight"), report.parameters.values(), strict=True))
    assert list(Vanishing()(replace(report, parameters=held))) == []
    far = gradients(*rms(1e-9, 1e-3, 900.0), parameters=[{}, {}])
    assert "site0" in [alert.site for alert in Vanishing()(replace(far, parameters=held))]


@pytest.mark.parametrize(
    ("modules", "parameters", "sites"),
    [
        ([0.1, 0.1], [0.1], []),
        ([0.99e3, 0.1], [], []),
        ([1.01e3, 0.1], [], ["site1", "site0"]),  # the first is where it grows
        ([500.0, 1.0, 0.1], [], []),
        ([999.0, 0.1], [999.0], []),
        ([1001.0, 1001.0], [1001.0], ["site0", "site1", "weight0"]),
        ([0.1, 999.0], [], []),
        ([1.01e-3, 1e-7], [], ["site1", "site0"]),
        ([2e-2, 2e-3, 2e-4, 2e-5, 1e-6], [], ["site0"]),  # little by little
        ([0.99e-3, 1e-7], [], []),
        ([1.01e-3, 1e-7, 0.1], [], []),  # one small gradient on the way explodes nothing
        ([1.01e-3, 1.01e-3, 1e-7], [], ["site2", "site0", "site1"]),
        ([1e-8, 1.01e-3, 1e-7], [], []),  # nor does a large one that those before it do not share
        ([1.0, 0.0, math.nan], [math.nan], []),
        ([math.inf, 0.1], [], ["site1", "site0"]),
    ],
)
def test_exploding(gradients, modules, parameters, sites):
    alerts = list(judged(Exploding(), gradients(*rms(*modules), parameters=rms(*parameters))))
    assert [alert.site for alert in alerts] == sites
    assert all((alert.kind, alert.epoch, alert.step) == ("exploding", 3, 120) for alert in alerts)
    assert all(alert.severity == "warning" for alert in alerts)


def test_nonfinite(gradients):
    report = gradients(
        {},
        {"nonfinite_fraction": 0.125, "first_nonfinite_batch": 7},
        parameters=[{}, {"nonfinite_steps": 1, "first_nonfinite_step": 90}, {"nonfinite_steps": 2}],
    )
    alerts = list(NonfiniteGradients()(report))
    assert [(alert.site, alert.value, alert.severity, alert.kind) for alert in alerts] == [
        ("site1", 0.125, "critical", "nonfinite"),
        ("weight1", 1, "critical", "nonfinite"),
        ("weight2", 2, "critical", "nonfinite"),
    ]
    assert [alert.text.split(" is NaN or infinite")[0] for alert in alerts] == [
        "12.5% of the gradient",
        "at 1 measured step the gradient",
        "at 2 measured steps the gradient",
    ]
    assert [alert.text.split("infinite")[1].split("; ")[0] for alert in alerts] == [
        ", first in training batch 7 of the epoch",
        ", first at step 90",
        "",
    ]
    assert [(alert.batch, alert.since_step) for alert in alerts] == [(7, None), (None, 90), (None, None)]


@pytest.mark.parametrize(
    ("threshold", "fraction", "found"),
    [(1.0, 1.0, True), (1.0, 0.9999, False), (0.9, 0.9, True), (0.9, 0.89, False), (1.0, math.nan, False)],
)
def test_zero(gradients, threshold, fraction, found):
    alerts = list(judged(Zero(threshold), gradients({}, parameters=[{}, {"zero_fraction": fraction}])))
    assert [(alert.kind, alert.site, alert.value, alert.severity) for alert in alerts] == (
        [("zero", "weight1", fraction, "warning")] if found else []
    )
    assert all("Check the layers after it" in alert.text for alert in alerts)


@pytest.mark.parametrize(("weight", "severity"), [({}, "info"), ({"zero_fraction": 1.0}, "warning"), ({"steps": 0}, "warning")])
def test_the_zero_gradient_of_a_bias_is_an_info_where_its_weight_learns(gradients, weight, severity):
    report = gradients({}, parameters=[weight, {"zero_fraction": 1.0}])
    ours = dict(zip(("head.weight", "head.bias"), report.parameters.values(), strict=True))
    alerts = list(judged(Zero(), replace(report, parameters=ours)))
    assert [alert.severity for alert in alerts if alert.site == "head.bias"] == [severity]
    parametrised = {name.replace("weight", "parametrizations.weight.original"): stats for name, stats in ours.items()}
    alerts = list(judged(Zero(), replace(report, parameters=parametrised)))
    assert [alert.severity for alert in alerts if alert.site == "head.bias"] == [severity]


@pytest.mark.parametrize(("weight", "severity"), [(9.0, "info"), (11.0, "warning"), (None, "warning")])
def test_gradients_that_do_not_reach_the_weights_do_no_harm(gradients, weight, severity):
    """As those of padding at the output of an embedding."""
    parameters = {} if weight is None else {"parameters": [{"rms": weight}]}
    given = gradients({"rms": 1e4}, {"rms": 0.1}, **parameters)
    given = replace(given, parameters=dict(zip(["site0.weight"], given.parameters.values(), strict=False)))
    assert {alert.severity for alert in judged(Exploding(absolute=math.inf), given)} == {severity}


@pytest.mark.parametrize(("weight", "severity"), [(0.9e-3, "info"), (1.1e-3, "warning"), (None, "warning")])
def test_a_module_that_stretches_gradients_does_no_harm_where_they_reach_no_weight(gradients, weight, severity):
    """As a layer norm of an embedding's padding, which is 0."""
    given = gradients({"rms": 1.0, "norm": 1e4}, {"rms": 1e-4, "norm": 1.0}, {"rms": 1e-4, "norm": 1.0})
    own = {} if weight is None else {"site0.weight": replace(PARAMETER, rms=weight)}
    given = replace(given, parameters={**own, "site1.weight": replace(PARAMETER, rms=1.0)})
    assert [(alert.site, alert.severity) for alert in judged(Stretching(), given)] == [("site1", severity)]


@pytest.mark.parametrize(
    ("steps", "missing", "nonfinite", "found"),
    [(0, 1, 0, True), (0, 5, 0, True), (1, 5, 0, False), (0, 5, 1, False), (4, 0, 0, False), (0, 0, 0, False)],
)
def test_missing(gradients, steps, missing, nonfinite, found):
    change = {"steps": steps, "missing_steps": missing, "nonfinite_steps": nonfinite}
    alerts = list(judged(Missing(), gradients({}, parameters=[{}, change])))
    assert [(alert.kind, alert.site, alert.value, alert.severity) for alert in alerts] == (
        [("missing", "weight1", missing, "warning")] if found else []
    )
    assert all("Freeze it with requires_grad_(False)" in alert.text for alert in alerts)


@pytest.mark.parametrize("rule", [Vanishing(), Exploding(), NonfiniteGradients(), Zero(), Missing()], ids=repr)
def test_healthy_gradients_give_no_alert(gradients, rule):
    assert list(rule(gradients({}, {}, parameters=[{}]))) == []
    assert list(rule(gradients())) == []


def test_size_alone_is_nothing_to_adam_while_the_loss_falls(gradients):
    held = {"weight0": ParameterSetup(100, 2, True, True, ("0-Adam",))}
    huge = replace(gradients({"rms": 2e3}, parameters=[{"rms": 2e3}]), setups=held)
    low, high = LossReport(40, 2.0, 0.3, 1.5, 2.5, 1.5), LossReport(40, 3.0, 0.0, 3.0, 3.0, 3.0)
    sgd = {"weight0": replace(held["weight0"], optimizers=("0-Adam", "1-SGD"))}
    assert list(judged(Exploding(), replace(huge, loss=low))) == []
    assert list(judged(Exploding(), replace(huge, loss=low), [replace(huge, loss=high)])) == []
    for report, history in (
        (huge, []),  # a loss that nobody saw
        (replace(huge, loss=high), [replace(huge, loss=low)]),
        (replace(huge, loss=replace(low, nonfinite_steps=1)), []),
        (replace(huge, loss=low, setups=sgd), []),
        (replace(huge, loss=low, setups={}), []),
    ):
        assert [alert.site for alert in judged(Exploding(), report, history)] == ["site0", "weight0"]
    for given in (5.0, 1e4):  # a limit of the user's own holds always
        sites = [alert.site for alert in judged(Exploding(absolute=given), replace(huge, loss=low))]
        assert sites == (["site0", "weight0"] if given == 5.0 else [])
