"""Hypotheses about causes: what speaks for and against them, and remedies whose values come from what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.alerts import (
    Alert,
    ClipReport,
    FeatureReport,
    GradientFlowReport,
    GroupSettings,
    LossReport,
    OptimizerStats,
    ParameterSetup,
)
from lightning_hooks.alerts.explain import explain
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.declare.host import TrainingSetup
from lightning_hooks.declare.hypothesis import OPS, Cause, Hypothesis, Remedy, ranked
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.plain import from_plain
from lightning_hooks.diagnostics.causes import code, rates, weights
from lightning_hooks.diagnostics.causes import steps as large_steps
from lightning_hooks.diagnostics.causes.facts import Facts as AllFacts
from lightning_hooks.diagnostics.causes.facts import TensorFacts
from lightning_hooks.diagnostics.features.stats import FeatureStats
from lightning_hooks.diagnostics.gradients.stats import ParameterGradientStats
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.optimizer.table import ScheduleStats
from lightning_hooks.judge.diagnosis import measured, with_causes
from tests.support.bad_steps import data_of, failed

NAN = math.nan


def Facts(*args: Any, **known: Any) -> AllFacts:
    """Facts whose optimizers are those of the report."""
    flow = known.get("flow")
    return AllFacts(*args, **({"optimizers": flow.optimizers} if flow is not None else {}), **known)


def alert(kind: str = "dead", site: str = "net.relu", **changes: Any) -> Alert:
    return Alert(
        kind, site, 1.0, 0.7, 0, 10, "warning", "seen.", diagnosis="Common causes: a rate, or a bias.", advice=("Old",), **changes
    )


def stats(mean: float = 0.0, std: float = 1.0, low: float = -3.0, high: float = 3.0) -> FeatureStats:
    return FeatureStats(4, 400, mean, std, low, high, math.hypot(mean, std), 0.0, 0.0)


def flow(
    ratio: float | None = 1e-3, lr: float = 1e-3, kind: str = "AdamW", step_ratio: float | None = None, **group: Any
) -> GradientFlowReport:
    settings = GroupSettings(**{"lr": lr, "lr_peak": lr, **group})
    gradient = ParameterGradientStats(10, 1.0, 1.0, 0.1, 0.0, 0, 0, ratio)
    return GradientFlowReport(
        0, 10, {}, {"net.fc.weight": gradient}, 1.0,
        setups={"net.fc.weight": ParameterSetup(64, 2, True, True, (f"0-{kind}",), 10, lr, lr)},
        optimizers={f"0-{kind}": OptimizerStats((lr,), (lr,), groups=(settings,))},
        learning=None if step_ratio is None else LearningReport(step_ratio=step_ratio),
    )  # fmt: skip


def steps(norm: float, top: float | None = None, limit: float | None = None) -> ClipReport:
    found = ClipStats(50, 0, 0.0, norm, top or norm, norm, top or norm, 1.0, 0, 0, (), limit)
    return ClipReport(0, 10, {"0-AdamW": found})


def clipped_at(norm: float) -> TrainingSetup:
    return TrainingSetup(device=torch.device("cpu"), clip_norm=norm)


MODULES = {"net.fc": "Linear", "net.relu": "ReLU"}


def test_a_bias_below_zero_since_the_start_is_the_cause_with_its_value() -> None:
    bias = TensorFacts(32, -2.0, -2.0, -2.0)
    features = FeatureReport(0, 10, {"net.fc": stats(-2.0, 0.2, -3.0, -1.2), "net.relu": stats(0, 0, 0, 0)})
    facts = Facts(features, modules=MODULES, now={"net.fc.bias": bias}, start={"net.fc.bias": bias})
    cause = weights.offset_bias.judge(alert(), facts)
    assert cause is not None
    assert cause.decisive
    assert cause.statement == "net.fc.bias is -2 in all 32 units, since the start."
    assert "the largest output of net.fc is -1.2, without it 0.8" in cause.evidence_for
    (remedy,) = cause.remedies
    assert (remedy.op, remedy.target, remedy.to, remedy.code) == ("fill", "net.fc.bias", 0.0, "nn.init.zeros_(self.net.fc.bias)")
    assert remedy.text == "Fill net.fc.bias with 0: nn.init.zeros_(self.net.fc.bias)"


@pytest.mark.parametrize("low", [-0.1, 0.0])
def test_a_usual_bias_is_none(low: float) -> None:
    bias = TensorFacts(32, 0.0, low, 0.1)
    facts = Facts(
        FeatureReport(0, 10, {"net.fc": stats()}), modules=MODULES, now={"net.fc.bias": bias}, start={"net.fc.bias": bias}
    )
    assert weights.offset_bias.judge(alert(), facts) is None


def test_a_bias_that_moved_speaks_against_it() -> None:
    now, start = TensorFacts(32, -5.0, -6.0, -4.0), TensorFacts(32, 0.0, -0.1, 0.1)
    facts = Facts(FeatureReport(0, 10, {}), modules=MODULES, now={"net.fc.bias": now}, start={"net.fc.bias": start})
    cause = weights.offset_bias.judge(alert(), facts)
    assert cause is None or not cause.decisive


@pytest.mark.parametrize(("kind", "lr", "to"), [("AdamW", 2.0, 3e-3), ("SGD", 30.0, 0.1)])
def test_a_rate_beyond_the_usual_is_the_cause_and_the_remedy_is_a_usual_one(kind: str, lr: float, to: float) -> None:
    cause = rates.rate_too_high.judge(alert("update_too_large", f"0-{kind}"), Facts(flow=flow(0.5, lr, kind, -0.1)))
    assert cause is not None
    assert cause.decisive
    assert f"The learning rate is {lr:.3g}; {kind}'s usual range is " in cause.statement
    assert "its steps gain -0.1 of what their gradients predict" in cause.evidence_for
    first, second = cause.remedies
    assert (first.op, first.target, first.from_, first.to) == ("set", "optimizer.lr", lr, to)
    assert second.to == pytest.approx(to / 10)


@pytest.mark.parametrize(
    ("sign", "maximize", "found"),
    [
        (1, True, "The loss is made as large as possible: optimizer.maximize is True."),
        (-1, False, "The loss is made as large as possible: there is a minus before it."),
        (-1, True, ""),
        (1, False, ""),
        (0, True, ""),  # a reward
    ],
)
def test_a_distance_that_is_made_larger_is_the_cause(sign: int, maximize: bool, found: str) -> None:
    loss = LossReport(40, 1.0, 0.0, 1.0, 1.0, 1.0, start=1.0)
    report = dataclasses.replace(flow(maximize=maximize), loss=loss, loss_sign=sign)
    causes = ranked(alert("weights_growing"), Facts(flow=report), KINDS["weights_growing"].hypotheses)
    statements = {cause.name: cause.statement for cause in causes}
    assert statements.get("wrong_sign", "") == found
    by_hand = dataclasses.replace(report, loss=dataclasses.replace(loss, optimized=False))
    assert not [one for one in ranked(alert(), Facts(flow=by_hand), KINDS["dead"].hypotheses) if one.name == "wrong_sign"]


def test_an_info_says_nothing_about_a_rate_that_is_too_high() -> None:
    """Targets of 2e5 need steps that are unusual: a lower rate makes that healthy training worse."""
    facts, info = Facts(flow=flow(0.27, 0.05, "Adam")), dataclasses.replace(alert("constant", "net.fc"), severity="info")
    assert rates.rate_too_high.judge(alert("constant", "net.fc"), facts) is not None
    assert rates.rate_too_high.judge(info, facts) is None


def test_a_function_that_squashes_is_removed_and_not_the_layer_before_it() -> None:
    twice = dataclasses.replace(flow(), squashed_twice="net.fc")
    cause = code.activation_before_loss.judge(alert("double_softmax", "net.fc"), Facts(flow=twice, modules={"net.fc": "Linear"}))
    assert cause is not None
    assert (
        cause.statement == "The output of net.fc (Linear) is passed through a softmax or sigmoid before a loss that expects logits."
    )
    assert cause.remedies[0].text == "Remove the softmax or sigmoid that the output of net.fc is passed through"
    cause = code.activation_before_loss.judge(alert("double_softmax", "net.fc"), Facts(flow=twice, modules={"net.fc": "Softmax"}))
    assert cause is not None
    assert cause.remedies[0].text == "Remove net.fc: self.net.fc = nn.Identity()"


def test_the_last_layer_among_thousands_is_found_at_once() -> None:
    sites = dict.fromkeys([f"net.block{number}{part}" for number in range(4000) for part in ("", ".relu")], stats())
    given = FeatureReport(0, 10, sites, sampled_batches=4, outputs={"cross_entropy": None})  # type: ignore[dict-item]
    began = time.perf_counter()
    known = Facts(features=given, modules={"net.block3999.relu": "ReLU", "net.block3999": "Block"})
    cause = code.activation_before_loss.judge(alert("output_range", "cross_entropy"), known)
    assert cause is not None
    assert cause.statement == "net.block3999.relu (ReLU) stands before a loss that expects logits."
    assert time.perf_counter() - began < 3.0  # names that are compared with each other take half a minute


def test_the_model_itself_in_code() -> None:
    left = KINDS["eval_mode"].hypotheses[-1]
    cause = left.judge(alert("eval_mode", "the model"), Facts())
    assert cause is not None
    assert cause.remedies[0].text == "Call train() of the model: self.train()"


def test_a_usual_rate_is_lowered_by_what_its_steps_do() -> None:
    cause = rates.rate_too_high.judge(alert("update_too_large", "0-AdamW"), Facts(flow=flow(0.3, 8e-3)))
    assert cause is not None
    assert cause.remedies[0].to == pytest.approx(rates.rounded(8e-3 * rates.USUAL_UPDATE / 0.3))


def test_small_steps_speak_against_a_rate_that_is_too_high() -> None:
    cause = rates.rate_too_high.judge(alert(), Facts(flow=flow(1e-4, 1e-3, step_ratio=0.9)))
    assert cause is None


def test_weight_decay_is_not_advised_where_it_is_usual_and_is_where_it_is_not() -> None:
    usual = Facts(flow=flow(0.5, 2.0, weight_decay=0.01))
    assert rates.unusual_setting.judge(alert("update_too_large", "0-AdamW"), usual) is None
    found = with_causes(alert("update_too_large", "0-AdamW"), usual)
    assert found.causes[0].name == "rate_too_high"
    assert "weight_decay" not in found.text
    cause = rates.unusual_setting.judge(alert("update_too_large", "0-AdamW"), Facts(flow=flow(weight_decay=30.0)))
    assert cause is not None
    assert cause.statement == "weight_decay of 0-AdamW is 30; 0.01 is usual."
    assert cause.remedies[0].target == "optimizer.weight_decay"
    assert cause.remedies[0].to == 0.01


@pytest.mark.parametrize(("kind", "usual"), [("Adam", 1e-4), ("SGD", 1e-4), ("AdamW", 0.01)])
def test_a_decay_that_is_added_to_the_gradient_is_usually_smaller(kind: str, usual: float) -> None:
    cause = rates.unusual_setting.judge(alert("optimizer_settings", f"0-{kind}"), Facts(flow=flow(kind=kind, weight_decay=1.0)))
    assert cause is not None
    assert [(remedy.target, remedy.to) for remedy in cause.remedies] == [("optimizer.weight_decay", usual)]


def test_one_group_that_is_much_faster_is_blamed_and_the_others_are_not() -> None:
    report = flow(0.5)
    groups = tuple(GroupSettings(lr=lr, lr_peak=lr) for lr in (1e-3, 1.0))
    report = dataclasses.replace(report, optimizers={"0-AdamW": OptimizerStats((1e-3, 1.0), (1e-3, 1.0), groups=groups)})
    cause = rates.group_too_fast.judge(alert("update_too_large"), Facts(flow=report))
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("optimizer.param_groups[1].lr", 1e-3)
    assert rates.rate_too_high.judge(alert("update_too_large"), Facts(flow=report)) is None


def test_clipping_is_set_to_the_usual_norm_and_never_advised_where_it_is_set() -> None:
    spike = alert("spike", "0-AdamW", batch=3)
    cause = large_steps.unclipped.judge(spike, Facts(flow=flow(), clip=steps(1.3, 60.0)))
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("trainer.gradient_clip_val", 1.0)
    assert large_steps.unclipped.judge(spike, Facts(flow=flow(), clip=steps(1.3, 60.0), setup=clipped_at(1.0))) is None
    given = dataclasses.replace(spike, advice=("Set gradient_clip_val to limit such a step", "Check the data"))
    assert with_causes(given, Facts(setup=clipped_at(1.0))).advice == ("Check the data",)
    assert "Set gradient_clip_val to limit such a step" in with_causes(given, Facts(clip=steps(1.3))).advice


def test_a_list_of_causes_ends_with_its_sentence() -> None:
    """Not at a period within code."""
    listed = dataclasses.replace(
        alert(), diagnosis="It is so. Common causes: loss.backward() past it, or a detach(), .item() or no_grad() before it. More."
    )
    assert with_causes(listed, Facts()).diagnosis == listed.diagnosis
    decided = with_causes(listed, Facts(flow=flow(ratio=0.3, lr=1.0, kind="Adam"))).diagnosis
    assert decided.startswith("The learning rate is 1; ")
    assert decided.endswith(" It is so. More.")


def test_what_ruined_the_weights_is_known_when_no_gradient_reaches_them_any_more() -> None:
    ruined, still = flow(ratio=0.3, lr=1.0, kind="Adam"), flow(ratio=1e-4, lr=1.0, kind="Adam")
    assert rates.rate_too_high.judge(alert("dead"), Facts(flow=still)).score < 0.5
    cause = rates.rate_too_high.judge(alert("dead"), Facts(flow=still.after([ruined])))
    assert cause.decisive
    assert "a step changes a weight by 0.3 of its size, where 0.003 is usual" in cause.evidence_for
    assert cause.remedies[0].to == 3e-3


def test_steps_that_ruin_all_weights_say_nothing_of_a_usual_rate() -> None:
    """A remedy stays at or above the lowest usual rate, where the rate is above it."""
    assert rates.lower_rate(Facts(flow=flow(ratio=1e9, lr=0.01, kind="SGD")).rates()[0], Facts(flow=flow(1e9, 0.01, "SGD"))) == 1e-4
    assert rates.lower_rate(Facts(flow=flow(ratio=1e9, lr=1e-5, kind="SGD")).rates()[0], Facts(flow=flow(1e9, 1e-5, "SGD"))) == 1e-6


@pytest.mark.parametrize(
    ("operation", "cause"), [("addmm", "rate_too_high"), ("add_", "rate_too_high"), ("div", "nonfinite_operation")]
)
def test_an_operation_that_only_overflows_is_no_cause(operation: str, cause: str) -> None:
    step = failed(operation, "net.fc", "inf")
    known = Facts(flow=flow(ratio=0.3, lr=0.1, kind="SGD"), bad_step=step)
    found = with_causes(alert("nonfinite", "net.fc"), known).causes
    assert [one.name for one in found if one.decisive] == [cause]


def test_a_threshold_far_below_the_norm_is_raised_above_it() -> None:
    cause = large_steps.clip_too_low.judge(alert("always_clipped"), Facts(clip=steps(4.0), setup=clipped_at(1e-4)))
    assert cause is not None
    assert cause.decisive
    assert (cause.remedies[0].from_, cause.remedies[0].to) == (1e-4, 8.0)
    exploding = Facts(clip=steps(4.0), setup=clipped_at(1e-4), others=[("exploding", "net.fc")])
    cause = large_steps.clip_too_low.judge(alert("always_clipped"), exploding)
    assert cause is None or not cause.decisive


def test_parts_that_the_model_does_not_have_are_not_named() -> None:
    given = dataclasses.replace(
        alert("exploding", "net.fc"),
        diagnosis="It grows. Common causes: an initialisation that is too large, or a recurrent network without clipping.",
        advice=("Normalise queries and keys (QK-norm)", "Try an orthogonal initialisation, if it is recurrent", "Look"),
    )
    without = with_causes(given, Facts(modules=MODULES))
    assert (without.diagnosis, without.advice) == ("It grows. Common causes: an initialisation that is too large.", ("Look",))
    assert with_causes(given, Facts(modules={"net.lstm": "LSTM", "net.a": "MultiheadAttention"})).diagnosis.startswith(
        given.diagnosis
    )


@pytest.mark.parametrize(("start", "named"), [(2.5e9, True), (2.5, False)])
def test_targets_that_are_not_normalised_are_named(start: float, named: bool) -> None:
    loss = LossReport(40, start, 0.0, start, start, start, start=start)
    found = with_causes(alert("exploding", "net.fc"), Facts(flow=dataclasses.replace(flow(), loss=loss)))
    assert [cause.name for cause in found.causes if cause.decisive] == ["large_targets"] * named
    assert ("The loss starts at 2.5e+09, as with targets of a size near 50000." in found.diagnosis) is named
    assert (found.advice[0] == "Multiply targets by 2e-05: target = target / 50000") is named


def test_a_schedule_that_is_too_short_is_made_as_long_as_the_training() -> None:
    over = flow(lr=0.0, lr_peak=1e-3, lr_initial=1e-3, low_steps=300)
    facts = Facts(
        flow=over,
        schedules=(ScheduleStats("CosineAnnealingLR", "T_max", 50, True, 0, False),),
        setup=TrainingSetup(device=torch.device("cpu"), planned_steps=400),
    )
    cause = rates.wrong_schedule.judge(alert("lr_zero", "0-AdamW"), facts)
    assert cause is not None
    assert cause.decisive
    assert [(r.op, r.target, r.from_, r.to) for r in cause.remedies] == [
        ("set", "scheduler.T_max", 50, 400),
        ("remove", "scheduler", "CosineAnnealingLR", None),
    ]
    rises = dataclasses.replace(facts, flow=flow(lr=9e-4, lr_peak=1e-3, lr_initial=1e-3))
    cause = rates.wrong_schedule.judge(alert("lr_zero", "0-AdamW"), rises)
    assert cause is not None
    assert cause.decisive  # it is back at its peak, and its length says why
    assert cause.evidence_for[-1] == "its T_max is 50, and 400 steps are planned"
    by_step = dataclasses.replace(facts, schedules=(ScheduleStats("ExponentialLR", "", 0, False, 0, False),))
    cause = rates.wrong_schedule.judge(alert("lr_zero", "0-AdamW"), by_step)
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("scheduler.interval", "epoch")


def test_outputs_that_are_the_same_after_many_sigmoids_have_them_as_their_cause_and_no_norm_that_the_model_lacks() -> None:
    modules = {f"net.{i}": "Sigmoid" if i % 2 else "Linear" for i in range(12)}
    causes = "Common causes: a norm over single numbers, a mean over what a norm has set to mean 0, or a mask that hides the input."
    same = dataclasses.replace(alert("representation_collapse", "net.10"), diagnosis=causes)
    found = with_causes(same, Facts(modules=modules))
    assert found.diagnosis == "The gradient passes 6 Sigmoid modules (net.1 to net.11)."
    assert found.remedies[0].to == "nn.ReLU and He initialisation"
    assert with_causes(same, Facts(modules={"net.0": "Linear"})).diagnosis == ""
    assert "a norm over single numbers" in with_causes(same, Facts(modules={"net.0": "LayerNorm"})).diagnosis


def test_what_is_open_since_an_earlier_window_counts_as_raised() -> None:
    dead = Facts(flow=flow(lr=5.0), others=(("update_too_large", "net.fc.weight"),))
    cause = rates.rate_too_high.judge(alert("dead", "net.relu"), dead)
    assert cause is not None
    assert "update_too_large is raised too" in cause.evidence_for


def test_data_weights_and_operations_that_are_not_finite_are_distinguished() -> None:
    nan = alert("nonfinite", "net.fc")
    clean = {"net.fc.weight": TensorFacts(64, 0.0, -1.0, 1.0)}
    data = data_of("[0]", samples=(700,))
    named = [with_causes(nan, Facts(start=clean, bad_step=data)).causes[0]]
    step = failed("sqrt")
    named.append(with_causes(nan, Facts(start=clean, bad_step=step)).causes[0])
    named.append(with_causes(nan, Facts(start={"net.fc.weight": TensorFacts(64, NAN, NAN, NAN, 1)})).causes[0])
    assert [cause.name for cause in named] == ["nonfinite_data", "nonfinite_operation", "nonfinite_weights"]
    assert named[0].statement == "batch[0] has NaN in it."
    assert named[1].remedies[0].text == "Replace sqrt in training_step by torch.sqrt(x.clamp_min(1e-8))"
    assert "NaN or infinite when training started" in named[2].statement


def test_parameters_are_measured_against_plain_arithmetic() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 3)
    layer.bias.data[1] = NAN
    layer.weight.data[0, 0] = -9.0
    found = measured(layer.named_parameters())
    assert found["weight"].low == -9.0
    assert found["weight"].high == max(layer.weight.flatten().tolist())
    assert found["weight"].mean == pytest.approx(sum(layer.weight.flatten().tolist()) / 15, rel=1e-5)
    assert (found["weight"].nonfinite, found["bias"].nonfinite, found["bias"].elements) == (0, 1, 3)
    lazy = nn.LazyLinear(3)
    assert measured(lazy.named_parameters()) == {}
    assert measured([("a", nn.Parameter(torch.full((4,), 7.0)))])["a"].constant


def test_causes_are_ranked_and_a_hypothesis_that_raises_is_reported() -> None:
    faults: list[str] = []

    def make(name: str, score: float) -> Hypothesis:
        return Hypothesis(name, name, (), lambda *_: Cause(name, "So.", score) if score else 1 / 0)  # type: ignore[return-value]

    found = ranked(alert(), Facts(), [make("a", 0.2), make("b", 0.0), make("c", 0.9)], lambda name, error: faults.append(name))
    assert [cause.name for cause in found] == ["c", "a"]
    assert faults == ["b"]


def test_a_decisive_cause_takes_the_place_of_the_list_of_common_ones_and_another_does_not() -> None:
    bias = TensorFacts(32, -2.0, -2.0, -2.0)
    known = Facts(
        FeatureReport(0, 10, {"net.fc": stats(-2.0, 0.2, -3.0, -1.2)}),
        modules=MODULES,
        now={"net.fc.bias": bias},
        start={"net.fc.bias": bias},
    )
    found = with_causes(alert(), known)
    assert found.diagnosis == "net.fc.bias is -2 in all 32 units, since the start."
    assert found.advice == (found.remedies[0].text,)
    unknown = with_causes(alert(), Facts(modules=MODULES))
    assert (unknown.diagnosis, unknown.advice, unknown.causes, unknown.remedies) == (
        "Common causes: a rate, or a bias.",
        ("Old",),
        (),
        (),
    )


def test_a_remedy_for_many_layers_names_the_first_ones_in_its_text() -> None:
    names = [f"net.{i}" for i in range(40)]
    remedy = Remedy("insert", ", ".join(names), None, "nn.ReLU()", code="self.net[0] = …")
    assert remedy.text == "Put nn.ReLU() before net.0, net.1, net.2 and 37 more: self.net[0] = …"
    assert remedy.target.split(", ") == names
    words = "one, two, three, four, five, and all that follow"
    assert Remedy("check", words).text == f"Check {words}"


def test_an_alert_with_causes_survives_json_and_one_without_loads() -> None:
    remedy = Remedy("set", "optimizer.lr", 2.0, 0.003, "it is 2", "a fall", 50, "AdamW(lr=0.003)")
    whole = alert(causes=(Cause("a", "So.", 0.9, ("x",), ("y",), (remedy,)),), remedies=(remedy,))
    plain = json.loads(json.dumps(whole.record()))
    assert plain["remedies"][0] == {
        "op": "set", "target": "optimizer.lr", "from": 2.0, "to": 0.003, "precondition": "it is 2", "effect": "a fall", "steps": 50,
        "code": "AdamW(lr=0.003)",
    }  # fmt: skip
    assert from_plain(Alert, plain) == whole
    old = {key: value for key, value in plain.items() if key not in ("causes", "remedies")}
    assert from_plain(Alert, old) == alert()


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.hypotheses], ids=lambda kind: kind.name)
def test_hypotheses_of_every_kind_say_nothing_where_nothing_is_known(kind: Any) -> None:
    for one in kind.hypotheses:
        assert one.title
        assert one.remedies
        cause = one.judge(dataclasses.replace(alert(kind.name), value=0.5), Facts())
        assert cause is None or cause.evidence_for == ("seen.",), one.name  # what a rule states as a fact
        for remedy in cause.remedies if cause else ():
            assert remedy.op in OPS
    assert code.NONFINITE
    assert large_steps.STEP_SIZE


def test_explain_lists_the_causes_of_a_kind_with_their_remedies() -> None:
    lines = "\n".join(explain("dead"))
    assert "Causes that are judged, and what is done about them:\n  offset_bias: a bias holds the units below zero" in lines
    assert "Remedies: fill the bias with 0." in " ".join(lines.split())
    assert "Causes that are judged" not in "\n".join(explain("silent"))
