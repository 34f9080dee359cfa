"""Hypotheses about slopes, signs, numbers, masks, batches and shortcuts: what speaks for them and against them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from lightning_hooks.alerts import (
    Alert,
    FeatureReport,
    GradientFlowReport,
    GroupSettings,
    LearningReport,
    LossReport,
    OptimizerStats,
    ParameterSetup,
)
from lightning_hooks.declare.cause import PROOF, STRONG, CauseEvidence, Judgement, Remedy, possible_cause
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.attention import rules as attention
from lightning_hooks.diagnostics.attention.table import AttentionReport, AttentionStats
from lightning_hooks.diagnostics.causes import code, data, rates, weights, wiring
from lightning_hooks.diagnostics.causes import steps as large_steps
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import GradientStats, ParameterGradientStats
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputStats
from lightning_hooks.diagnostics.loss_inputs.rules import UnreachableTargets
from lightning_hooks.diagnostics.loss_inputs.targets import BLANK, SIGNS, TargetStats
from lightning_hooks.diagnostics.setup.rules import ClassWeights, LabelSmoothing
from tests.support.causes import judged

MODULES = {"net.a": "Linear", "net.b": "Linear", "net.norm": "BatchNorm1d", "net": "Sequential"}
START = {"net.a.weight": TensorFacts(64, 0.0, -0.5, 0.5), "net.b.weight": TensorFacts(64, 0.0, -0.5, 0.5)}
ATTENDS = AttentionStats(4, 64, (), 4.0, 0.6, 0.1, 0.0, 0.0)


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


def facts(given: FeatureReport | None = None, report: GradientFlowReport | None = None, **fields: Any) -> Facts:
    return Facts(given or features(), report or flow(), **{"modules": MODULES, "start": START, **fields})


@pytest.mark.parametrize(("share", "found"), [(0.0, True), (0.1, False)])
def test_a_mask_that_hides_the_first_key_of_all_samples(share: float, found: bool) -> None:
    known = AttentionReport(0, 10, {"net.a/sdpa": dataclasses.replace(ATTENDS, first_token_share=share)})
    cause = judged(attention.inverted_mask, alert("no_progress"), facts(window=Window([known])))
    assert (cause is not None and cause.decisive) is found


@pytest.mark.parametrize(
    ("kind", "factor", "strengths"),
    [("SGD", 1e4, ("strong",)), ("SGD", 3.0, None), ("Adam", 1e4, None), ("SGD", 65536.0, ("strong", "excludes"))],
)
def test_a_loss_that_is_multiplied(kind: str, factor: float, strengths: tuple[str, ...] | None) -> None:
    """The first window says so, also of an alert that comes later; steps of Adam do not depend on it."""
    rates_ = {f"0-{kind}": OptimizerStats((0.1,), (0.1,), groups=(GroupSettings(lr=0.1, lr_peak=0.1),))}
    began = LossReport(8, 9.0, 1.0, 9.0, 9.0, 9.0, recent=(2.3 * factor, 9e9, 9e9))
    first = features(outputs={"cross_entropy": of_logits(first_loss=2.3)}), flow(loss=began, optimizers=rates_)
    later = features().after([first[0]]), flow(optimizers=rates_).after([first[1]])
    for given, report in (first, later):
        cause = judged(large_steps.loss_multiplied, alert("dead", "net.b"), facts(given, report, optimizers=rates_))
        assert (None if cause is None else cause.strengths) == strengths
        if cause is not None:
            assert [(remedy.target, remedy.to) for remedy in cause.remedies] == [("loss", float(f"{1 / factor:.2g}"))]


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
    cause = judged(rates.rate_too_high, alert("dead", "net.b"), facts(given, report, optimizers=optimizers))
    assert cause is not None
    assert cause.decisive is decisive


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
    cause = judged(wiring.cut_path, alert("missing", "net.a.bias"), facts(features(silent=silent), report))
    assert cause is not None
    assert cause.decisive
    assert [remedy.text for remedy in cause.remedies] == [text]
    assert (cause.evidence_for == ("seen.",)) is (not silent and not steps), "the alert's own words stay where no more is known"


@pytest.mark.parametrize(
    ("sign", "maximize", "optimized", "over", "strengths"),
    [
        (1, True, True, 1.0, (PROOF,)),
        (-1, False, True, 1.0, (PROOF,)),
        (1, True, False, 4.0, (STRONG,)),  # manual optimization, where an adversary may do so
        (0, True, True, 4.0, (STRONG,)),
        (1, True, False, 0.9, None),
        (-1, True, True, 4.0, None),
        (1, False, True, 4.0, None),
    ],
)
def test_a_loss_that_is_made_larger(sign: int, maximize: bool, optimized: bool, over: float, strengths: Any) -> None:
    loss = LossReport(64, 2.0, 0.1, 1.8, 2.3, 2.0, recent=(2.0,) * 64, optimized=optimized)
    report = flow(loss=loss, loss_sign=sign, learning=LearningReport(over_constant=over))
    known = {"0-SGD": OptimizerStats((0.1,), (0.1,), groups=(GroupSettings(lr=0.1, maximize=maximize),))}
    cause = judged(large_steps.wrong_sign, alert("loss_diverging"), facts(None, report, optimizers=known))
    assert (None if cause is None else cause.strengths) == strengths


def of_logits(**numbers: Any) -> OutputStats:
    plain = dict.fromkeys([field.name for field in dataclasses.fields(OutputStats)], 0)
    return OutputStats(**{**plain, "calls": 4, "frequent_weight": math.nan, **numbers})


def test_what_a_rule_states_of_a_loss_has_its_cause_and_no_other() -> None:
    zeros, blanks = (TargetStats(4, 0, 0, 0, 0, 0, 0, bounded=400, outside=200, bound=bound) for bound in (SIGNS, BLANK))
    down = TargetStats(4, 0, 0, 0, 0, 0, 0, weighted_down=1.0)
    given = features(
        targets={"hinge_embedding_loss": zeros, "ctc_loss": blanks, "bce_with_logits": down},
        outputs={
            "cross_entropy": of_logits(frequent_weight=2.0),
            "cross_entropy#2": of_logits(smoothing=0.49),
            "cross_entropy#3": of_logits(smoothing=0.5),
        },
    )
    alerts = [one for rule in (UnreachableTargets(), ClassWeights(), LabelSmoothing()) for one in rule(given)]
    for cause, right in (
        (code.LABELS_OF_ZERO, {"hinge_embedding_loss"}),
        (code.BLANK_LABEL, {"ctc_loss"}),
        (code.UPSIDE_DOWN, {"cross_entropy", "bce_with_logits"}),
        (code.SMOOTHED, {"cross_entropy#3"}),
    ):
        found = {one.site: judged(cause, one, facts(given)) for one in alerts}
        assert {site for site, one in found.items() if one is not None} == right
        assert all(one.decisive for one in found.values() if one is not None)


def test_inputs_far_from_0_in_a_narrow_range_are_moved_to_one_around_0() -> None:
    given = features(images=True, inputs={"training": stats(-2.0, 0.005)})
    cause = judged(data.large_inputs, alert("no_progress"), facts(given))
    assert cause is not None
    assert [remedy.to for remedy in cause.remedies] == ["its values, standardised", "its values, from -1 to 1"]


@pytest.mark.parametrize(("value", "targets"), [(0.05, "net.a.weight, net.b.weight"), (0.0, "net.a.weight")])
def test_weights_that_one_number_fills_are_initialised_in_all_layers(value: float, targets: str) -> None:
    """But zeros, with which branches start by design."""
    start = {f"net.{name}.weight": TensorFacts(64, value, value, value) for name in "ab"}
    setups = {name: ParameterSetup(64, 2, True, True) for name in start}
    known = facts(features(initial_gains={"net.a": 0.2, "net.b": 0.2}), flow(setups=setups), start=start, now=start)
    cause = judged(weights.constant_weights, alert("poor_init", "net.a"), known)
    assert cause is not None
    (remedy,) = cause.remedies
    assert (remedy.target, remedy.to) == (targets, 1.0)  # those of constant layers are no usual gains


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
    @possible_cause("do it")
    def supposed(_: Any, __: Any, found: CauseEvidence) -> Judgement:
        """Something."""
        found.add(True, PROOF, "it is so")
        return "It is so.", [remedy]

    cause = judged(supposed, alert("dead"), facts())
    assert cause is not None
    assert cause.remedies == (remedy,) * possible
