"""Hypotheses about slopes, signs, numbers, masks, batches and shortcuts: what speaks for them and against them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.alerts import (
    Alert,
    FeatureReport,
    GradientFlowReport,
    GroupSettings,
    LossReport,
    OptimizerStats,
    ParameterSetup,
)
from lightning_hooks.declare.host import TrainingSetup
from lightning_hooks.declare.hypothesis import CauseEvidence, Judgement, Remedy, hypothesis
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.attention import rules as attention
from lightning_hooks.diagnostics.attention.table import AttentionReport, AttentionStats
from lightning_hooks.diagnostics.batches.inputs import FeatureScales
from lightning_hooks.diagnostics.causes import code, data, rates, weights, wiring
from lightning_hooks.diagnostics.causes import steps as large_steps
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.features.stats import FeatureStats
from lightning_hooks.diagnostics.gradients.stats import GradientStats, ParameterGradientStats
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.loss.report import ValidationLoss
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputStats
from lightning_hooks.diagnostics.loss_inputs.targets import BLANK, SIGNS, TargetStats
from lightning_hooks.diagnostics.optimizer.table import ScheduleStats
from lightning_hooks.diagnostics.representations.table import RepresentationStats
from lightning_hooks.diagnostics.residual_stream.table import ResidualStats
from lightning_hooks.diagnostics.setup.checks import ModelSetup
from lightning_hooks.judge.diagnosis import _places_first
from tests.support.bad_steps import data_of, failed

MODULES = {"net.a": "Linear", "net.b": "Linear", "net.norm": "BatchNorm1d", "net": "Sequential"}
START = {"net.a.weight": TensorFacts(64, 0.0, -0.5, 0.5), "net.b.weight": TensorFacts(64, 0.0, -0.5, 0.5)}
ATTENDS = AttentionStats(4, 64, (), 4.0, 0.6, 0.1, 0.0, 0.0)
BLOCK = ResidualStats(4, 1.0, 5.0, 3.0, 0.0, 2.0, 0.9, 7, 0.4, 2.8, 65504.0, "blocks")


def alert(kind: str, site: str = "loss") -> Alert:
    return Alert(kind, site, 1.0, 0.7, 0, 10, "warning", "seen.")


def stats(mean: float = 0.0, std: float = 1.0) -> FeatureStats:
    return FeatureStats(4, 400, mean, std, mean - 3 * std, mean + 3 * std, math.hypot(mean, std), 0.0, 0.0)


def features(**fields: Any) -> FeatureReport:
    sites = {"net.a": stats(), "net.b": stats()}
    return FeatureReport(0, 10, fields.pop("sites", sites), input_place="[0]", sampled_batches=4, **fields)


def flow(zeros: float = 0.0, **fields: Any) -> GradientFlowReport:
    gradient = ParameterGradientStats(10, 1 - zeros, 1 - zeros, 0.1, zeros, 0, 0, 3e-3)
    arrived = {name: GradientStats(4, 400, 0.0, rms, -1.0, 1.0, rms, 1.0, 1.0, 0.0, 0.0) for name, rms in fields.pop("rms", ())}
    return GradientFlowReport(0, 10, arrived, dict.fromkeys(START, gradient), 1.0, sampled_batches=4, **fields)


def varied(**ratios: float) -> dict[str, RepresentationStats]:
    return {f"net.{name}": RepresentationStats(4, ratio, 1.0, ratio, ratio) for name, ratio in ratios.items()}


def facts(given: FeatureReport | None = None, report: GradientFlowReport | None = None, **fields: Any) -> Facts:
    return Facts(given or features(), report or flow(), **{"modules": MODULES, "start": START, **fields})


@pytest.mark.parametrize(("gain", "modules", "found"), [(8.0, {}, True), (1.4, {}, False), (8.0, {"net.n": "LayerNorm"}, False)])
def test_layers_that_all_start_too_large(gain: float, modules: dict[str, str], found: bool) -> None:
    given = features(initial_gains=dict.fromkeys(("net.a", "net.b", "net.c"), gain))
    cause = weights.stretching_start.judge(alert("poor_init"), facts(given, modules=modules))
    assert (cause is not None) is found
    assert cause is None or (cause.decisive and cause.remedies[0].target == "net.a, net.b, net.c")


def test_most_layers_start_too_large_and_a_norm_stands_elsewhere() -> None:
    """Those that start as usual are the measure, though they are fewer, and the remedy is for all of the others."""
    gains = {"net.first": 0.6, **{f"net.stack.{n}": 8.0 for n in (0, 2, 4)}, "net.head": 0.5}
    modules = {**dict.fromkeys(gains, "Linear"), "net.norm": "BatchNorm1d", "net.stack.1": "ReLU"}
    known = facts(features(initial_gains=gains), modules=modules)
    for site in ("net.head", "net.stack.1", "loss"):
        cause = weights.initial_scale.judge(alert("poor_init", site), known)
        assert cause is not None
        assert cause.decisive
        assert cause.statement.startswith("net.stack.0.weight and 2 more started 14.5 times as large as is usual in this model")
        (remedy,) = cause.remedies
        assert (remedy.op, remedy.target) == ("initialise", "net.stack.0.weight, net.stack.2.weight, net.stack.4.weight")
        assert remedy.to == pytest.approx(0.55)  # the median of those that start as usual


def test_all_layers_start_too_large_with_norms_between_them() -> None:
    gains = {f"net.{n}": gain for n, gain in enumerate((5.0, 5.6, 8.0))}
    known = facts(features(initial_gains=gains), modules={**dict.fromkeys(gains, "Linear"), "net.n": "LayerNorm"})
    cause = weights.initial_scale.judge(alert("attention_collapse", "net.1"), known)
    assert cause is not None
    assert cause.decisive
    (remedy,) = cause.remedies
    assert (remedy.target, remedy.to) == ("net.1.weight, net.0.weight, net.2.weight", 1.0)


@pytest.mark.parametrize(("layers", "relu", "found"), [(21, True, True), (21, False, False), (5, True, False)])
def test_a_deep_chain_of_rectifiers_that_starts_with_pytorchs_own_gain(layers: int, relu: bool, found: bool) -> None:
    gains = {f"net.{2 * n}": 3**-0.5 for n in range(layers)}
    between = dict.fromkeys((f"net.{2 * n + 1}" for n in range(layers)), "ReLU" if relu else "Sigmoid")
    modules = {**dict.fromkeys(gains, "Linear"), **between, "other": "ReLU"}
    cause = weights.small_start.judge(
        alert("representation_collapse", "net.20"), facts(features(initial_gains=gains), modules=modules)
    )
    assert (cause is not None and cause.decisive) is found
    if cause is not None:
        assert cause.remedies[0].to == pytest.approx(2**0.5)  # He et al. 2015
        assert "kaiming" in cause.remedies[0].code


def test_one_layer_starts_larger_than_the_others() -> None:
    gains = {"net.a": 0.1, "net.b": 0.1, "net.c": 1.0}
    modules = dict.fromkeys(gains, "Linear")
    cause = weights.initial_scale.judge(alert("exploding", "net.c"), facts(features(initial_gains=gains), modules=modules))
    assert cause is not None
    assert [(remedy.target, remedy.to, remedy.code) for remedy in cause.remedies] == [
        ("net.c.weight", 0.1, "self.net.c.weight.data.mul_(0.1)")
    ]


@pytest.mark.parametrize(("zeros", "found"), [(1.0, True), (0.5, False)])
def test_outputs_that_are_rounded_before_the_loss(zeros: float, found: bool) -> None:
    report = flow(zeros, rms=(("net.a", 0.0), ("net.b", 0.0)))
    cause = wiring.flat_outputs.judge(alert("zero", "net.b.weight"), facts(report=report))
    assert (cause is not None) is found
    if cause is not None:
        assert cause.decisive
        assert cause.remedies[0].target == "round, floor or sign of what net.b puts out"
        assert cause.evidence_for[1] == "the outputs of net.b differ"


@pytest.mark.parametrize(
    ("before", "behind", "rms", "score"), [(0.1, 1e-16, 1e-6, 0.7), (0.1, 1e-16, 0.1, 0.4), (0.1, 0.1, 1e-6, 0.0)]
)
def test_codes_between_two_layers(before: float, behind: float, rms: float, score: float) -> None:
    report = flow(rms=(("net.a", rms), ("net.b", 0.1)))
    known = facts(features(representations=varied(a=before, b=behind)), report)
    cause = wiring.flat_between.judge(alert("representation_collapse", "net.b"), known)
    assert (0.0 if cause is None else cause.score) == score
    assert wiring.flat_between.judge(alert("representation_collapse", "net.a"), known) is None


@pytest.mark.parametrize(("share", "found"), [(0.0, True), (0.1, False)])
def test_a_mask_that_hides_the_first_key_of_all_samples(share: float, found: bool) -> None:
    known = AttentionReport(0, 10, {"net.a/sdpa": dataclasses.replace(ATTENDS, first_token_share=share)})
    cause = attention.inverted_mask.judge(alert("no_progress"), facts(window=Window([known])))
    assert (cause is not None and cause.decisive) is found


class Placed(nn.Module):
    """Attention, with a table of positions."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(shape))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)


@pytest.mark.parametrize(("shape", "found"), [((64, 1, 8), ["table"]), ((1, 64, 8), []), ((64, 1, 4), [])])
def test_positions_for_sequences_with_their_places_first(shape: tuple[int, ...], found: list[str]) -> None:
    known = _places_first(Placed(*shape))
    assert known == found
    cause = wiring.positions_by_sample.judge(alert("no_progress"), facts(places_first=known))
    assert (cause is not None and cause.decisive) is bool(found)


@pytest.mark.parametrize(("logit", "gain", "score"), [(400.0, 1.0, 0.6), (400.0, 9.0, 0.2), (8.0, 1.0, None)])
def test_scores_that_are_not_scaled(logit: float, gain: float, score: float | None) -> None:
    sites = {"net.a/sdpa": dataclasses.replace(ATTENDS, max_logit=logit), "net.b/sdpa": ATTENDS}
    given = features(initial_gains={"net.a": gain, "net.b": 1.0, "net.c": 1.0})
    known = facts(given, window=Window([AttentionReport(0, 10, sites)]))
    cause = attention.unscaled_scores.judge(alert("attention_collapse", "net.a/sdpa"), known)
    assert (None if cause is None else cause.score) == score


@pytest.mark.parametrize(("carried", "found"), [(2.8, True), (1.1, False)])
def test_a_shortcut_that_is_added_more_than_once(carried: float, found: bool) -> None:
    block = dataclasses.replace(BLOCK, carried=carried)
    given = features(residual={f"net.blocks.{number}": block for number in range(4)})
    cause = weights.scaled_shortcut.judge(alert("residual_growth", "net.blocks.3"), facts(given))
    assert (cause is not None and cause.decisive) is found


def test_batches_that_are_too_small_for_a_batch_norm() -> None:
    report = flow(model_setup=ModelSetup(values_per_channel={"net.norm": 2.0}), learning=LearningReport(batch_size=2.0))
    cause = weights.small_batches.judge(alert("settings", "net.norm"), facts(report=report))
    assert cause is not None
    assert [(remedy.target, remedy.to) for remedy in cause.remedies] == [
        ("dataloader.batch_size", 16),
        ("nn.BatchNorm1d", "nn.GroupNorm"),
    ]
    assert weights.small_batches.judge(alert("settings", "net.a"), facts(report=report)) is None


@pytest.mark.parametrize(("recent", "known", "score"), [
    ((1.0, -1.0, -2.0, -3.0, -4.0), True, 0.7),
    ((1.0, -1.0, -2.0, -3.0, -4.0), False, None),
    ((1.0, 0.5, 0.4, 0.3, 0.3), True, None),
])  # fmt: skip
def test_a_term_of_the_loss_with_the_wrong_sign(recent: tuple[float, ...], known: bool, score: float | None) -> None:
    given = features(targets={"mse_loss": TargetStats(4, 0, 0, 0, 0, 0, 0)} if known else {})
    report = flow(loss=LossReport(40, 0.0, 0.1, -4.0, 1.0, recent[-1], recent=recent))
    cause = large_steps.wrong_sign.judge(alert("weights_growing", "net.a.weight"), facts(given, report))
    assert (None if cause is None else cause.score) == score


@pytest.mark.parametrize(
    ("site", "size", "found"), [("validation loss", 1.0, True), ("net.a", 1.0, False), ("validation loss", 9.0, False)]
)
def test_numbers_of_classes_that_differ_in_validation(site: str, size: float, found: bool) -> None:
    given = features(inputs={"training": stats(), "validation": stats(0.0, size)})
    loss = LossReport(40, 2.0, 0.1, 1.9, 2.1, 2.0, validations=(ValidationLoss(10, 4.0),))
    assert (code.other_numbers.judge(alert("validation_shift", site), facts(given, flow(loss=loss))) is not None) is found


@pytest.mark.parametrize(("last", "known", "found"), [(1e-6, False, True), (1e-6, True, False), (0.5, False, False)])
def test_a_loss_that_is_smallest_where_outputs_are_the_same(last: float, known: bool, found: bool) -> None:
    given = features(targets={"mse_loss": TargetStats(4, 0, 0, 0, 0, 0, 0)} if known else {})
    report = flow(loss=LossReport(40, last, 0.0, last, 1.0, last, recent=(1.0, last), start=1.0))
    cause = data.nothing_repels.judge(alert("representation_collapse", "net.b"), facts(given, report))
    assert (cause is not None and cause.decisive) is found


def test_a_mask_that_is_missing_or_the_opposite() -> None:
    for shown, to in ((("net.a/sdpa",), "a causal one"), ((), "its opposite, if that was meant")):
        known = AttentionReport(0, 10, {"net.a/sdpa": ATTENDS}, target_shown=shown)
        cause = attention.wrong_mask.judge(alert("masked_rows", "net.a/sdpa"), facts(window=Window([known])))
        assert cause is not None
        assert cause.decisive
        assert cause.remedies[0].to == to


@pytest.mark.parametrize(("outside", "score"), [(3, 0.85), (0, None)])
def test_labels_that_are_the_blank(outside: int, score: float | None) -> None:
    given = features(targets={"ctc_loss": TargetStats(4, 0, 0, 0, 0, 0, 0, bounded=40, outside=outside, bound=BLANK)})
    cause = code.blank_label.judge(alert("output_range", "ctc_loss"), facts(given))
    assert (None if cause is None else cause.score) == score


@pytest.mark.parametrize(("kind", "factor", "score"), [("SGD", 1e4, 0.75), ("SGD", 3.0, None), ("Adam", 1e4, None)])
def test_a_loss_that_is_multiplied(kind: str, factor: float, score: float | None) -> None:
    """The first window says so, also of an alert that comes later; steps of Adam do not depend on it."""
    rates_ = {f"0-{kind}": OptimizerStats((0.1,), (0.1,), groups=(GroupSettings(lr=0.1, lr_peak=0.1),))}
    began = LossReport(8, 9.0, 1.0, 9.0, 9.0, 9.0, recent=(2.3 * factor, 9e9, 9e9))
    first = features(outputs={"cross_entropy": of_logits(first_loss=2.3)}), flow(loss=began, optimizers=rates_)
    later = features().after([first[0]]), flow(optimizers=rates_).after([first[1]])
    for given, report in (first, later):
        cause = large_steps.loss_multiplied.judge(alert("dead", "net.b"), facts(given, report, optimizers=rates_))
        assert (None if cause is None else cause.score) == score
        if cause is not None:
            assert [(remedy.target, remedy.to) for remedy in cause.remedies] == [("loss", 1e-4)]


@pytest.mark.parametrize(("size", "score"), [(200.0, 0.55), (3.0, None)])
def test_inputs_that_the_model_itself_makes_large(size: float, score: float | None) -> None:
    given = features(inputs={"training": stats()}, feature_scales={"net.a": FeatureScales(2.0, 3, 8, size)})
    cause = data.large_inputs.judge(alert("dead", "net.b"), facts(given))
    assert (None if cause is None else cause.score) == score
    if cause is not None:
        assert [(remedy.target, remedy.to) for remedy in cause.remedies] == [("what net.a is given", 0.005)]


@pytest.mark.parametrize(("feature", "decisive"), [(1000.0, False), (100.0, True)])
def test_a_number_that_is_far_from_its_own_feature_stands_for_what_is_missing(feature: float, decisive: bool) -> None:
    inputs = dataclasses.replace(stats(0.0, 250.0), min=0.0, max=3432.0)
    given = features(inputs={"training": inputs}, feature_scales={"net.a": FeatureScales(9.0, 3, 8, feature)})
    cause = data.placeholder.judge(alert("exploding", "net.b"), facts(given))
    assert (cause is not None and cause.decisive) is decisive


@pytest.mark.parametrize(("start", "inputs", "decisive"), [(2.0, 1.0, True), (2e4, 1.0, False), (2.0, 100.0, False)])
def test_a_usual_rate_is_not_the_cause_where_something_makes_gradients_large(start: float, inputs: float, decisive: bool) -> None:
    ratio = ParameterGradientStats(10, 1.0, 1.0, 0.1, 0.0, 0, 0, 5.0)
    given, optimizers = features(inputs={"training": stats(0.0, inputs)}), {"0-SGD": OptimizerStats((0.1,), (0.1,))}
    optimizers = {"0-SGD": dataclasses.replace(optimizers["0-SGD"], groups=(GroupSettings(lr=0.1, lr_peak=0.1),))}
    report = dataclasses.replace(
        flow(loss=LossReport(8, start, 1.0, start, start, start, recent=(start,)), optimizers=optimizers),
        parameters={"net.a.weight": ratio},
        setups={"net.a.weight": ParameterSetup(64, 2, True, True, ("0-SGD",), 10, 0.1, 0.1)},
    )
    cause = rates.rate_too_high.judge(alert("dead", "net.b"), facts(given, report, optimizers=optimizers))
    assert cause is not None
    assert cause.decisive is decisive


@pytest.mark.parametrize(("dead", "score"), [(True, None), (False, 0.6)])
def test_a_weight_that_is_given_zeros_has_no_slope_either(dead: bool, score: float | None) -> None:
    report = dataclasses.replace(
        flow(),
        parameters={
            "net.b.weight": ParameterGradientStats(10, 0.0, 0.0, 0.0, 1.0, 0, 0, 0.0),
            "net.b.bias": ParameterGradientStats(10, 1.0, 1.0, 0.1, 0.0, 0, 0, 1e-3),
        },
    )
    modules = {"net.a": "Linear", "net.relu": "ReLU", "net.b": "Linear"}
    known = facts(report=report, modules=modules, others=[("dead", "net.relu")] if dead else [])
    cause = wiring.no_slope.judge(alert("zero", "net.b.weight"), known)
    assert (None if cause is None else cause.score) == score


@pytest.mark.parametrize(
    ("silent", "steps", "text"),
    [
        ((), 10, "Remove what cuts the path between net.a and net.b (detach, no_grad, argmax, a forward without it)"),
        ((), 0, "Remove what cuts the path from net.a.bias to the loss (detach, no_grad, argmax, a forward without it)"),
        (("net.a",), 10, "Call net.a in forward"),
    ],
)
def test_where_the_path_to_the_loss_is_cut(silent: tuple[str, ...], steps: int, text: str) -> None:
    none = ParameterGradientStats(0, 0.0, 0.0, 0.0, 0.0, 0, 10, None)
    learns = ParameterGradientStats(steps, 1.0, 1.0, 0.1, 0.0, 0, 0, 1e-3)
    report = dataclasses.replace(flow(), parameters={"net.a.weight": none, "net.a.bias": none, "net.b.weight": learns})
    cause = wiring.cut_path.judge(alert("missing", "net.a.bias"), facts(features(silent=silent), report))
    assert cause is not None
    assert cause.decisive
    assert [remedy.text for remedy in cause.remedies] == [text]
    assert (cause.evidence_for == ("seen.",)) is (not silent and not steps), "the alert's own words stay where no more is known"


def of_logits(**numbers: Any) -> OutputStats:
    plain = dict.fromkeys([field.name for field in dataclasses.fields(OutputStats)], 0)
    return OutputStats(**{**plain, "calls": 4, "frequent_weight": math.nan, **numbers})


def test_causes_in_what_a_loss_is_given() -> None:
    zeros = TargetStats(4, 0, 0, 0, 0, 0, 0, bounded=40, outside=20, bound=SIGNS)
    down = TargetStats(4, 0, 0, 0, 0, 0, 0, weighted_down=1.0)
    given = features(
        targets={"hinge_embedding_loss": zeros, "bce_with_logits": down, "mse_loss": TargetStats(4, 0, 0, 0, 0, 0, 0)},
        outputs={"cross_entropy": of_logits(frequent_weight=2.0, viewed=3), "nll_loss": of_logits()},
    )
    for cause, kind, right in (
        (code.labels_of_zero, "output_range", {"hinge_embedding_loss"}),
        (code.viewed_classes, "output_range", {"cross_entropy"}),
        (code.weights_upside_down, "settings", {"cross_entropy", "bce_with_logits"}),
    ):
        sites = (*given.targets, *given.outputs, "net")
        found = {site: cause.judge(alert(kind, site), facts(given)) for site in sites}
        assert {site for site, one in found.items() if one is not None} == right
        assert all(one.decisive for one in found.values() if one is not None)


@pytest.mark.parametrize(("ratio", "found"), [(0.0, True), (1e-3, False)])
def test_a_step_that_changes_nothing(ratio: float, found: bool) -> None:
    held = ParameterSetup(64, 2, True, True, ("0-Adam",), 10, 1e-3, 1e-3)
    gradient = ParameterGradientStats(10, 1.0, 1.0, 0.1, 0.0, 0, 0, ratio)
    report = dataclasses.replace(flow(setups=dict.fromkeys(START, held)), parameters=dict.fromkeys(START, gradient))
    optimizers = {"0-Adam": OptimizerStats((1e-3,), (1e-3,), groups=(GroupSettings(lr=1e-3, lr_peak=1e-3),))}
    cause = wiring.idle_step.judge(alert("update_too_small", "0-Adam"), facts(report=report, optimizers=optimizers))
    assert (cause is not None and cause.decisive) is found


def test_a_rectifier_before_a_logarithm_is_the_second_remedy() -> None:
    known = facts(bad_step=failed("log", value="-inf"))
    cause = code.nonfinite_operation.judge(alert("loss_nonfinite"), known)
    assert cause is not None
    assert cause.remedies[1].text == "Replace the rectifier before the log in training_step by a softplus: torch.log(F.softplus(x))"


def test_inputs_far_from_0_in_a_narrow_range_are_moved_to_one_around_0() -> None:
    given = features(images=True, inputs={"training": stats(-2.0, 0.005)})
    cause = data.large_inputs.judge(alert("no_progress"), facts(given))
    assert cause is not None
    assert [remedy.to for remedy in cause.remedies] == ["its values, standardised", "its values, from -1 to 1"]


def test_the_factor_of_a_schedule_that_was_at_its_highest_is_made_up_for_by_the_rate() -> None:
    settings = GroupSettings(lr=1e-6, lr_peak=3e-6, lr_initial=1e-4)
    held = ParameterSetup(64, 2, True, True, ("0-Adam",), 10, 1e-6, 1e-6)
    report = flow(setups=dict.fromkeys(START, held))
    optimizers = {"0-Adam": OptimizerStats((1e-6,), (3e-6,), groups=(settings,))}
    schedule = ScheduleStats("LambdaLR", "", 0, False, 0, False)
    setup = TrainingSetup(device=torch.device("cpu"))
    cause = rates.wrong_schedule.judge(
        alert("lr_zero", "0-Adam"), facts(report=report, optimizers=optimizers, schedules=[schedule], setup=setup)
    )
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("optimizer.lr", 0.1)


@pytest.mark.parametrize("constant", [True, False])
def test_a_bias_that_fills_all_layers_is_mended_in_all_of_them(constant: bool) -> None:
    low = -4.6 if constant else -4.7
    start = {f"net.{name}.bias": TensorFacts(8, -4.6, low, -4.6) for name in "abc"} | {"net.d.bias": TensorFacts(8, 0.0, 0.0, 0.0)}
    known = facts(start=start, now=start, modules=dict.fromkeys(("net.a", "net.b", "net.c", "net.d"), "Linear"))
    cause = weights.offset_bias.judge(alert("dead", "net.a"), known)
    assert cause is not None
    (remedy,) = cause.remedies
    assert remedy.target == ("net.a.bias, net.b.bias, net.c.bias" if constant else "net.a.bias")
    assert remedy.code.count("nn.init.zeros_") == (3 if constant else 1)


@pytest.mark.parametrize(("value", "targets"), [(0.05, "net.a.weight, net.b.weight"), (0.0, "net.a.weight")])
def test_weights_that_one_number_fills_are_initialised_in_all_layers(value: float, targets: str) -> None:
    """But zeros, with which branches start by design."""
    start = {f"net.{name}.weight": TensorFacts(64, value, value, value) for name in "ab"}
    setups = {name: ParameterSetup(64, 2, True, True) for name in start}
    known = facts(features(initial_gains={"net.a": 0.2, "net.b": 0.2}), flow(setups=setups), start=start, now=start)
    cause = weights.constant_weights.judge(alert("poor_init", "net.a"), known)
    assert cause is not None
    (remedy,) = cause.remedies
    assert (remedy.target, remedy.to) == (targets, 1.0)  # those of constant layers are no usual gains


@pytest.mark.parametrize(("largest", "images", "score"), [(1 / 255, True, 0.8), (1 / 255, False, 0.6), (0.02, True, None)])
def test_inputs_next_to_zero(largest: float, images: bool, score: float | None) -> None:
    known = dataclasses.replace(stats(), min=0.0, max=largest)
    cause = data.tiny_inputs.judge(alert("constant", "net.0"), facts(features(inputs={"training": known}, images=images)))
    assert (None if cause is None else cause.score) == score
    if cause is not None:
        assert (cause.remedies[0].op, cause.remedies[0].target, cause.remedies[0].to) == ("scale", "batch[0]", 255.0)


@pytest.mark.parametrize(("share", "remedies"), [(0.5, 2), (0.01, 1)])
def test_many_numbers_that_are_not_finite_come_of_a_transform(share: float, remedies: int) -> None:
    known = dataclasses.replace(stats(), nonfinite_fraction=share)
    given = facts(features(inputs={"training": known}))
    step = data_of("[0]")
    cause = code.nonfinite_data.judge(alert("nonfinite", "net.0"), dataclasses.replace(given, bad_step=step))
    assert cause is not None
    assert len(cause.remedies) == remedies
    assert cause.remedies[-1].to == "finite numbers"


@pytest.mark.parametrize(
    ("remedy", "possible"),
    [
        (Remedy("scale", "batch[0]", None, 0.004), True),
        (Remedy("scale", "batch[0]", None, 0.0), False),
        (Remedy("set", "optimizer.lr", 1.0, math.inf), False),
        (Remedy("replace", "batch[0]", math.nan, "0"), False),
        (Remedy("scale", "targets", None, 0.1, code="target = target / inf"), False),
        (Remedy("fill", "net.a.bias", None, 0.0, code="nn.init.zeros_(self.net.a.bias)"), True),
        (Remedy("replace", "batch[0]", "NaN", "finite numbers", code="torch.nan_to_num(batch[0])"), True),
        (Remedy("replace", "-inf in it", to="a finite number", code="torch.finfo(x.dtype).min"), True),
    ],
)
def test_no_remedy_names_a_number_that_is_not_finite_or_multiplies_by_zero(remedy: Remedy, possible: bool) -> None:
    @hypothesis("do it")
    def supposed(_: Any, __: Any, found: CauseEvidence) -> Judgement:
        """Something."""
        found.add(True, 0.9, "it is so")
        return "It is so.", [remedy]

    cause = supposed.judge(alert("dead"), facts())
    assert cause is not None
    assert cause.remedies == (remedy,) * possible


@pytest.mark.parametrize("far", [math.inf, math.nan])
def test_numbers_that_are_not_finite_are_no_measure_of_a_scale(far: float) -> None:
    inputs = FeatureStats(4, 400, 1.0, far, -far, far, far, 0.0, 0.0)
    given = features(inputs={"training": inputs}, feature_scales={"net.a": FeatureScales(2.0, 3, 8, far)})
    assert data.large_inputs.judge(alert("exploding", "net.b"), facts(given)) is None
    assert data.placeholder.judge(alert("exploding", "net.b"), facts(given)) is None
    loss = LossReport(4, far, 0.0, far, far, far, recent=(far,) * 4, start=far)
    assert data.large_targets.judge(alert("exploding"), facts(features(), flow(loss=loss))) is None
    outputs = {"cross_entropy": of_logits(first_loss=2.3)}
    rate = {"0-SGD": OptimizerStats((0.1,), (0.1,), groups=(GroupSettings(lr=0.1, lr_peak=0.1),))}
    known = facts(features(outputs=outputs), flow(loss=loss), optimizers=rate)
    assert large_steps.loss_multiplied.judge(alert("dead", "net.b"), known) is None
    assert large_steps.loss_divided.judge(alert("second_moment_stale", "0-Adam"), facts()) is None  # no norm is known


POLICY = {**dict.fromkeys(("pi.0", "pi.1", "pi.2", "vf.0", "vf.1", "vf.2"), "Linear"), "later": "Linear"}


@pytest.mark.parametrize(("kind", "named"), [("saturated", None), ("poor_init", "pi.2.weight"), ("vanishing", "later.weight")])
def test_a_layer_of_another_part_is_not_the_cause(kind: str, named: str | None) -> None:
    """Small weights saturate nothing, and what is called later changes outputs before it through gradients alone."""
    gains = {**dict.fromkeys(POLICY, 1.0), "pi.2": 0.0147, "later": 0.001}
    cause = weights.initial_scale.judge(alert(kind, "vf.1"), facts(features(initial_gains=gains), modules=POLICY))
    assert (cause.remedies[0].target.partition(",")[0] if cause else None) == named


@pytest.mark.parametrize(("kind", "found"), [("poor_init", False), ("exploding", True)])
def test_a_parameter_of_a_later_layer_is_no_cause_of_outputs_before_it(kind: str, found: bool) -> None:
    start = {
        **{f"{name}.weight": TensorFacts(64, 0.0, -0.5, 0.5) for name in POLICY},
        "later.weight": TensorFacts(64, 0, -50.0, 50.0),
    }
    known = facts(modules=POLICY, start=start)
    assert (weights.large_start.judge(alert(kind, "vf.1"), known) is not None) is found
    assert weights.large_start.judge(alert(kind, "loss"), known) is not None


@pytest.mark.parametrize(("kind", "found"), [("dead", False), ("zero", True)])
def test_a_later_layer_of_zeros_is_no_cause_of_outputs_before_it(kind: str, found: bool) -> None:
    start = {f"{name}.weight": TensorFacts(64, 0.0, -0.5, 0.5) for name in POLICY} | {"later.weight": TensorFacts(64, 0, 0, 0)}
    setups = {name: ParameterSetup(64, 2, True, True) for name in start}
    known = facts(features(), flow(setups=setups), modules=POLICY, start=start)
    assert (weights.constant_weights.judge(alert(kind, "vf.1"), known) is not None) is found
