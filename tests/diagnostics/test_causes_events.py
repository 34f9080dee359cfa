"""Hypotheses about what is not finite, unusual batches, starts and steps: what speaks for them and against them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from lightning_hooks.alerts import (
    Alert,
    FeatureReport,
    GradientFlowReport,
    GroupSettings,
    LearningReport,
    OptimizerStats,
    ParameterSetup,
)
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.diagnostics.causes import code, data, rates, weights
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.causes.run_facts import measured
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputStats
from lightning_hooks.judge.diagnosis import with_causes
from tests.support.bad_steps import failed
from tests.support.causes import judged

SITE = "net.fc.weight"


def alert(kind: str, site: str = "loss", **changes: Any) -> Alert:
    return Alert(kind, site, 1.0, 0.7, 0, 10, "warning", "seen.", **changes)


def inputs(rms: float) -> FeatureReport:
    found = FeatureStats(4, 400, 0.0, rms, -3 * rms, 3 * rms, rms, 0.0, 0.0)
    return FeatureReport(0, 10, {}, inputs={"training": found}, input_place="[0]")


def flow(*ratios: float, norm: float = 1.0, lr: float = 0.1, groups: tuple[float, ...] = ()) -> GradientFlowReport:
    """The last of several windows, each with an update ratio."""
    settings = tuple(GroupSettings(lr=one, lr_peak=one) for one in groups or (lr,))
    known: dict[str, Any] = {
        "setups": {SITE: ParameterSetup(64, 2, True, True, ("0-SGD",), 10, lr, lr)},
        "optimizers": {"0-SGD": OptimizerStats((lr,), (lr,), groups=settings)},
    }
    gradient = ParameterGradientStats(10, 1.0, 1.0, 0.1, 0.0, 0, 0, 0.0)
    *earlier, last = (dataclasses.replace(gradient, update_ratio=one, update_ratio_max=one, weight_norm=1.0) for one in ratios)
    windows = [*earlier, dataclasses.replace(last, weight_norm=norm)]
    *before, report = (GradientFlowReport(0, 10, {}, {SITE: one}, 1.0, **known) for one in windows)
    return report.after(before)


def facts(given: FeatureReport | None = None, report: GradientFlowReport | None = None, **fields: Any) -> Facts:
    report = report or flow(1e-3)
    usual = {"optimizers": report.optimizers, "modules": {"net.fc": "Linear"}}
    return Facts(given or FeatureReport(0, 10, {}), report, **usual | fields)


@pytest.mark.parametrize(("ignored", "first"), [(4, "labels_lost"), (1, "nonfinite_operation")])
def test_a_loss_of_no_label_is_lost_labels_where_most_batches_have_none(ignored: int, first: str) -> None:
    logits = OutputStats(**{field.name: 0 for field in dataclasses.fields(OutputStats) if field.default is dataclasses.MISSING})
    given = FeatureReport(0, 10, {}, outputs={"cross_entropy": dataclasses.replace(logits, calls=8, ignored_calls=ignored)})
    found = with_causes(alert("loss_nonfinite"), facts(given, bad_step=failed("sqrt")))
    assert found.causes[0].name == first
    assert found.remedies[0].text.startswith("Check the labels" if first == "labels_lost" else "Replace sqrt")


@pytest.mark.parametrize(("before", "now", "named"), [(1.0, 500.0, "bad_batch"), (500.0, 500.0, "large_inputs")])
def test_inputs_that_are_large_in_one_window_alone_are_an_unusual_batch(before: float, now: float, named: str) -> None:
    given = inputs(now).after([inputs(before)])
    found = with_causes(alert("exploding", "0-SGD", batch=3), facts(given))
    assert found.causes[0].name == named
    excluded = judged(data.large_inputs, alert("exploding"), facts(given))
    assert excluded is not None
    assert excluded.decisive is (named == "large_inputs")


def test_samples_that_are_all_the_same_are_the_cause_of_batches_that_repeat() -> None:
    one = FeatureStats(4, 400, 2.0, 0.0, 2.0, 2.0, 2.0, 0.0, 0.0)
    given = FeatureReport(0, 10, {}, inputs={"training": one})
    assert [cause.name for cause in with_causes(alert("batch_repeated", "the data"), facts(given)).causes] == [
        "constant_data", "same_batches",
    ]  # fmt: skip
    assert [cause.name for cause in with_causes(alert("batch_repeated", "the data"), facts()).causes] == ["same_batches"]
    assert data.constant_data in KINDS["zero"].causes


@pytest.mark.parametrize(("head", "named"), [(50.0, "group_too_fast"), (0.5, "weights_not_loaded")])
def test_a_body_is_slow_only_where_the_rate_of_its_head_is_usual(head: float, named: str) -> None:
    report = flow(1e-3, groups=(head / 2500, head))
    known = facts(report=report)
    assert with_causes(alert("not_loaded", "net"), known).causes[0].name == named


@pytest.mark.parametrize(("norm", "found"), [(1.2, False), (3.0, True)])
def test_a_weight_that_grows_by_more_than_its_steps(norm: float, found: bool) -> None:
    """Ten steps of at most 1 % of its size make it at most 1.1 times as large; twice that is allowed for steps not measured."""
    cause = judged(code.changed_between_steps, alert("weights_growing", SITE), facts(report=flow(0.01, 0.01, norm=norm)))
    assert (cause is not None) is found
    if cause is not None:
        assert cause.evidence_for == ("it grew 3 times, which 10 steps of at most 1% of its size cannot do",)
        assert cause.remedies[0].text == f"Remove what multiplies or sets {SITE} between steps"


@pytest.mark.parametrize(("kind", "gain", "found"), [("RNN", 2.0, True), ("RNN", 0.58, False), ("LSTM", 2.0, True)])
def test_a_recurrent_weight_that_starts_large(kind: str, gain: float, found: bool) -> None:
    width, gates = 16, {"RNN": 1, "LSTM": 4}[kind]
    start = TensorFacts(gates * width**2, 0.0, -1.0, 1.0, rms=gain / math.sqrt(width))
    known = facts(modules={"net.rnn": kind}, start={"net.rnn.weight_hh_l0": start})
    cause = judged(weights.stretching_recurrence, alert("poor_init", "net.head"), known)
    assert cause is not None
    assert cause.decisive is found
    if found:
        assert f"net.rnn.weight_hh_l0 starts with a gain of {gain:.3g}" in cause.evidence_for[0]


def test_a_tensor_in_numbers() -> None:
    values = torch.tensor([[3.0, -4.0], [0.0, 5.0]])
    found = measured([("a", values), ("b", torch.tensor([1.0, math.nan]))])
    assert found["a"] == TensorFacts(4, 1.0, -4.0, 5.0, 0, pytest.approx(math.sqrt(50 / 4)))
    assert found["b"].nonfinite == 1


@pytest.mark.parametrize(("ratios", "to"), [((0.3, 1e4), 1e-3), ((1e4,), 0.01), ((0.01,), 0.01)])
def test_a_lower_rate_comes_from_steps_that_ruin_nothing(ratios: tuple[float, ...], to: float) -> None:
    """By a step of 0.3 of a weight a hundred times 0.003; by one that replaced all weights nothing but a tenth."""
    (rate,) = facts(report=flow(*ratios)).rates()
    assert rates.lower_rate(rate, facts(report=flow(*ratios))) == pytest.approx(to)


@pytest.mark.parametrize(
    ("ratios", "step", "decisive"),
    [((3e-3,), 100, True), ((3e-3, 1e-6), 100, True), ((0.3,), 100, False), ((3e-3,), 99, False)],
)
def test_targets_are_unrelated_where_steps_of_a_usual_size_bring_nothing(
    ratios: tuple[float, ...], step: int, decisive: bool
) -> None:
    """In any window: at the end a schedule makes steps small; and a training that has just begun may not have left the constant."""
    report = dataclasses.replace(flow(*ratios), step=step, learning=LearningReport(over_constant=1.01)).after(flow(*ratios).earlier)
    cause = judged(data.unrelated_targets, alert("no_progress"), facts(report=report))
    assert cause is not None
    assert cause.decisive is decisive


def test_what_overflows_in_a_layer_that_starts_far_too_large() -> None:
    gains = {"net.fc": 2e5, "net.a": 1.4, "net.b": 1.4, "net.c": 1.4}
    known = facts(FeatureReport(0, 10, {}, initial_gains=gains), start={"net.fc.weight": TensorFacts(64, 0.0, -1.0, 1.0)})
    for kind in ("nonfinite", "steps_skipped"):
        assert with_causes(alert(kind, "net.fc"), known).causes[0].name == "initial_scale"
