"""Rules over how a model is built and what it is fed, just below and just above their thresholds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    ConstantTargets,
    DoubleSoftmax,
    FeatureReport,
    GradientFlowReport,
    InputSize,
    LearningReport,
    OffsetInput,
    ParameterSetup,
    Placeholder,
    PoorInit,
    SameSamples,
    Shared,
    TargetStats,
    ValidationShift,
)
from lightning_hooks.diagnostics.causes.data import placeholder, strong_augmentation
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import GradientStats, ParameterGradientStats
from lightning_hooks.diagnostics.loss.report import LossReport
from lightning_hooks.diagnostics.representations import RepresentationStats

FED = FeatureStats(calls=4, count=100, mean=0.1, std=1.0, min=-2.0, max=2.0, rms=1.0, zero_fraction=0.0, nonfinite_fraction=0.0)


def features(**change: Any) -> FeatureReport:
    base = FeatureReport(0, 40, {"stem": FED, "head": FED}, (), 4, 40, order=("late", "stem", "head"), input_place="[0]")
    return replace(base, **change)


def names(rule: Any, report: Any) -> list[tuple[str, str, float, str]]:
    return [(alert.kind, alert.site, alert.value, alert.severity) for alert in rule(report)]


@pytest.mark.parametrize(
    ("gains", "faulty"),
    [
        ({"a": 1.0, "b": 1.1, "c": 7.6}, {}),
        ({"a": 1.0, "b": 1.1, "c": 7.8}, {"c": 7.8 / 1.1}),
        ({"a": 1.0, "b": 1.1, "c": 0.14}, {"c": 0.14}),
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 9.0, "e": 10.0}, {}),  # two of a kind: a matter of design
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 9.0, "e": 20.0}, {"d": 9.0, "e": 20.0}),
        ({"a": 1.0, "b": 99.0}, {}),  # too few to judge
        ({"a": 1.0, "b": 1.0, "c": 1.0, "d": 0.0, "e": math.inf, "f": math.nan}, {}),
        ({}, {}),
    ],
)
def test_poor_init(gains: dict[str, float], faulty: dict[str, float]) -> None:
    report = features(initial_gains=gains, initial_roles=dict.fromkeys(gains, "Linear"))
    assert {alert.site: alert.value for alert in PoorInit()(report)} == pytest.approx(faulty)
    assert list(PoorInit()(replace(report, epoch=1))) == []


def test_shared() -> None:
    report = features(shared={"layers.0": ("layers.1",), "blocks.0": tuple(f"blocks.{i}" for i in range(1, 6))})
    assert names(Shared(), report) == [("shared", "layers.0", 2, "warning"), ("shared", "blocks.0", 6, "warning")]
    assert names(Shared(), features(shared={"net.theta_b": ("net.theta_f",)})) == [("shared", "net.theta_b", 2, "info")]
    one, many = (alert.text for alert in Shared()(report))
    assert one.startswith("layers.1 is the same module, with the same weights.")
    assert many.startswith("blocks.1, blocks.2, blocks.3, … are the same module")
    assert one.endswith("mute this with rules=['-shared'].")


def test_double_softmax() -> None:
    report = GradientFlowReport(0, 40, {}, {}, 1.0)
    assert list(DoubleSoftmax()(report)) == []
    (alert,) = DoubleSoftmax()(replace(report, squashed_twice="net.softmax"))
    assert (alert.kind, alert.site, alert.severity) == ("double_softmax", "net.softmax", "warning")
    assert "cross_entropy and binary_cross_entropy_with_logits expect logits" in alert.text


def test_same_samples() -> None:
    assert names(SameSamples(), features(same_samples=True)) == [("constant", "stem", 0.0, "warning")]  # the first that was called
    assert names(SameSamples(), features(same_samples=False)) == names(SameSamples(), features()) == []
    assert names(SameSamples(), features(same_samples=True, sites={})) == []
    (alert,) = SameSamples()(features(same_samples=True))
    assert alert.text.startswith("all samples of a batch (tensor 0 of the batch) are identical")


@pytest.mark.parametrize(
    ("training", "validation", "found"),
    [
        (1.0, 4.0, None),
        (1.0, 4.1, 4.1),
        (4.0, 1.0, None),
        (4.1, 1.0, 1 / 4.1),
        (0.0, 1.0, None),
        (1.0, 0.0, None),
        (math.nan, 1.0, None),
        (1.0, None, None),
    ],
)
def test_validation_shift(training: float, validation: float | None, found: float | None) -> None:
    inputs = {"training": replace(FED, rms=training)} | ({} if validation is None else {"validation": replace(FED, rms=validation)})
    targets = {"mse_loss": TargetStats(4, 0, 0, 0, 0, 0, 0)}
    for fields in ({"inputs": inputs}, {"layer_inputs": inputs, "first_layer": "late", "targets": targets}):
        alerts = names(ValidationShift(), features(**fields))
        site = "stem" if "inputs" in fields else "late"
        assert alerts == ([] if found is None else [("validation_shift", site, pytest.approx(found), "warning")])
    assert not names(ValidationShift(), features(layer_inputs=inputs, first_layer="late")), "neither data nor targets: a game"


@pytest.mark.parametrize(
    ("low", "high", "rms", "found"),
    [(-999.0, 3.0, 318.0, -999.0), (-999.0, 3.0, 500.0, None), (-998.0, 3.0, 318.0, None), (-1.0, 9999.0, 100.0, 9999.0),
     (-9999.0, 99999.0, 1e4, 99999.0), (-99.0, 3.0, 9.0, None)],
)  # fmt: skip
def test_a_number_that_stands_for_what_is_missing(low: float, high: float, rms: float, found: float | None) -> None:
    inputs = {"training": replace(FED, min=low, max=high, rms=rms), "validation": replace(FED, min=-999.0, rms=9.0)}
    alerts = [*Placeholder()(features(inputs=inputs))]
    assert [(alert.kind, alert.site, alert.value) for alert in alerts] == (
        [] if found is None else [("feature_scale", "the data", abs(found) / rms)]
    )
    for alert in alerts:
        cause = placeholder.judge(alert, Facts(features=features(inputs=inputs, input_place="['x']")))
        assert alert.message.startswith(f"batch[0] holds {found:g}, which stands for what is missing")
        assert cause is not None
        assert cause.remedies[0].code == f"x[x == {found:g}] = 0"


@pytest.mark.parametrize(("rms", "layer", "found"), [(101.0, "stem", True), (99.0, "stem", False), (101.0, "log", False)])
def test_inputs_of_a_layer_with_weights_that_are_far_too_large(rms: float, layer: str, found: bool) -> None:
    inputs = {"training": replace(FED, rms=rms), "validation": replace(FED, rms=1e4)}
    given = features(layer_inputs=inputs, first_layer=layer, initial_gains={"stem": 0.58})
    assert names(InputSize(), given) == [("feature_scale", "stem", 101.0, "warning")] * found
    assert not names(InputSize(), features(first_layer=layer, initial_gains={"stem": 0.58}))


@pytest.mark.parametrize(("before", "found"), [(1.0, []), (4.9, ["validation_shift"])])
def test_a_window_with_an_unusual_batch_is_no_validation_shift(before: float, found: list[str]) -> None:
    first, now = (
        features(inputs={"training": replace(FED, rms=rms), "validation": replace(FED, rms=1.0)}) for rms in (before, 5.0)
    )
    assert [kind for kind, *_ in names(ValidationShift(), now.after([first]))] == found


@pytest.mark.parametrize(
    ("batch", "training", "validation", "strengths"),
    [
        (1.0, 5.0, 1.0, ("strong", "some")),  # noise in training
        (1.0, 5.0, 0.1, ("strong", "excludes")),
        (1.0, 1.0, 5.0, ()),  # validation is scaled in its step
        (5.0, 5.0, 1.0, ()),
    ],
)
def test_noise_that_the_step_adds(batch: float, training: float, validation: float, strengths: tuple[str, ...]) -> None:
    inputs = {"training": replace(FED, rms=training), "validation": replace(FED, rms=validation)}
    report = features(inputs={"training": replace(FED, rms=batch)}, layer_inputs=inputs, first_layer="late")
    (alert,) = ValidationShift()(report)
    cause = strong_augmentation.judge(alert, Facts(features=report))
    assert (() if cause is None else cause.strengths) == strengths
    if cause is not None and "some" in strengths:
        assert cause.statement == "The training step adds noise of a size near 4.9 to data of a size near 1."
        assert cause.remedies[0].to == 0.1
    assert strong_augmentation.judge(replace(alert, site="stem"), Facts(features=report)) is None


@pytest.mark.parametrize(
    ("mean", "std", "between", "found"),
    [
        (11.0, 1.0, None, 1 / 11),
        (-11.0, 1.0, 0.03, 1 / 11),
        (9.9, 1.0, 0.03, None),  # as logarithms of spectra may be
        (11.0, 1.0, 0.2, None),  # a batch norm comes first
        (11.0, 0.0, None, None),  # all the same, which other kinds say
        (math.inf, 1.0, None, None),
        (math.nan, math.nan, None, None),
    ],
)
def test_inputs_far_from_zero(mean: float, std: float, between: float | None, found: float | None) -> None:
    known = {} if between is None else {"stem": RepresentationStats(4, between, between), "late": RepresentationStats(4, 0.9, 0.9)}
    given = features(inputs={"training": replace(FED, mean=mean, std=std)}, representations=known)
    expected = [] if found is None else [("constant", "stem", pytest.approx(found), "warning")]
    assert names(OffsetInput(), given) == expected
    assert names(OffsetInput(), replace(given, sites={})) == []
    assert names(OffsetInput(), replace(given, inputs={"validation": given.inputs["training"]})) == []


def flow(agreement: float, samples: int = 32, calls: int = 4, steps: int = 40, **change: Any) -> GradientFlowReport:
    """A last layer of 10 outputs whose bias gets this share of what full agreement of the samples would give."""
    head = GradientStats(
        calls=calls, count=calls * samples * 10, mean=0.0, std=0.1, min=-1.0, max=1.0, rms=0.1, norm=0.3, norm_max=0.5,
        zero_fraction=0.0, nonfinite_fraction=0.0,
    )  # fmt: skip
    accumulated = calls / 4 * 40 / steps
    bias = ParameterGradientStats(
        steps=4, norm=agreement * math.sqrt(samples) * 0.3 * accumulated, norm_max=9.0, rms=0.1, zero_fraction=0.0,
        nonfinite_steps=0, missing_steps=0, update_ratio=1e-3,
    )  # fmt: skip
    setups = {"head.bias": ParameterSetup(10, 1, True, True, ("0-Adam",), steps=steps, lr=1e-3, lr_peak=1e-3)}
    base = GradientFlowReport(
        0, 40, {"stem": head, "head": head}, {"head.bias": bias}, 1.0, (), 4, 40, order=("head", "stem"), setups=setups
    )
    return replace(base, **change)


def test_constant_targets() -> None:
    assert names(ConstantTargets(), flow(0.899)) == []
    assert names(ConstantTargets(), flow(0.91)) == [("constant", "head", pytest.approx(0.91), "warning")]
    assert names(ConstantTargets(), flow(0.91, samples=7)) == []
    assert names(ConstantTargets(), flow(0.91, samples=8)) != []
    assert names(ConstantTargets(), flow(0.91, calls=8)) != []  # two calls a batch, both part of one step
    assert names(ConstantTargets(), flow(0.91, steps=10)) != []  # four batches a step
    accumulated = replace(flow(0.91), setups={"head.bias": replace(flow(0.91).setups["head.bias"], steps=10)})
    assert names(ConstantTargets(), accumulated) == []
    assert names(ConstantTargets(), flow(1.09)) != []
    assert names(ConstantTargets(), flow(1.11)) == []  # beyond agreement: the bias has a gradient from elsewhere too
    assert names(ConstantTargets(), flow(1.0, sampled_batches=1)) == []
    assert names(ConstantTargets(), flow(1.0, setups={})) == []
    assert names(ConstantTargets(), flow(1.0, parameters={})) == []
    assert names(ConstantTargets(), flow(1.0, modules={})) == []
    for over, found in ((0.009, []), (0.011, ["constant"])):  # of a loss that is nearly solved a few samples are all that is left
        assert [kind for kind, *_ in names(ConstantTargets(), flow(1.0, learning=LearningReport(over_constant=over)))] == found
    (alert,) = ConstantTargets()(flow(1.0))
    assert alert.text.startswith(
        "the gradient at its output has the same direction for all samples (100% of full agreement, limit 90%)"
    )


def lossy(report: GradientFlowReport, mean: float, fall: float = 0.0, **change: Any) -> GradientFlowReport:
    return replace(report, loss=LossReport(40, mean, fall, mean - fall, mean + fall, mean - fall), **change)


def test_targets_far_from_zero_are_not_constant_ones() -> None:
    """A regression's bias is on its way to the mean of the targets while the loss falls."""
    uneven = replace(flow(1.0).modules["head"], mean=0.05)
    regression = flow(1.0, modules={"stem": uneven, "head": uneven})
    softmax = flow(1.0)  # gradients cancel over its outputs

    def severity(report: GradientFlowReport, *history: GradientFlowReport) -> str:
        """In the first epoch, or in a later one."""
        (alert,) = ConstantTargets()(report.after(history))
        return alert.severity

    assert severity(lossy(regression, 5.0), lossy(regression, 8.0)) == "info"
    assert severity(lossy(regression, 8.0), lossy(regression, 8.0)) == "warning"
    assert severity(lossy(regression, 0.07), lossy(regression, 8.0)) == "warning"  # all but learned, and samples still agree
    assert severity(lossy(softmax, 5.0), lossy(softmax, 8.0)) == "warning"
    assert severity(lossy(regression, 8.0)) == "info"  # it may be that the bias has not grown yet
    assert severity(lossy(regression, 8.0), lossy(flow(0.5), 8.0)) == "info"
    assert severity(lossy(softmax, 5.0)) == "warning"
    assert severity(regression, regression) == "warning"  # a loss that nobody saw does not fall
    blanks = replace(softmax, loss_aligns=True)
    assert severity(lossy(blanks, 5.0)) == "info"
    assert severity(lossy(blanks, 5.0), lossy(blanks, 8.0)) == "info"
    assert severity(lossy(blanks, 8.0), lossy(blanks, 8.0)) == "warning"


def test_gradients_that_add_up_say_nothing_of_the_targets() -> None:
    report = flow(1.0)
    added = replace(report, setups={"head.bias": replace(report.setups["head.bias"], unzeroed_steps=39)})
    assert names(ConstantTargets(), added) == []
