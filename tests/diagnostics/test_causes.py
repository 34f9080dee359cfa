"""Hypotheses about causes: what speaks for and against them, and remedies whose values come from what was measured."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
import torch

from lightning_hooks.alerts import (
    Alert,
    ClipReport,
    FeatureReport,
    GradientFlowReport,
    GroupSettings,
    OptimizerStats,
    ParameterSetup,
)
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.declare.cause import OPS, Cause, Remedy
from lightning_hooks.declare.host import TrainingSetup
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.plain import from_plain
from lightning_hooks.diagnostics.causes import code, rates, weights
from lightning_hooks.diagnostics.causes import steps as large_steps
from lightning_hooks.diagnostics.causes.facts import Facts as AllFacts
from lightning_hooks.diagnostics.causes.facts import TensorFacts
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.optimizer.table import ScheduleStats
from lightning_hooks.judge.diagnosis import with_causes
from tests.support.bad_steps import data_of, failed
from tests.support.causes import judged

NAN = math.nan


def Facts(*args: Any, **known: Any) -> AllFacts:
    """Facts whose optimizers are those of the report."""
    flow = known.get("flow")
    return AllFacts(*args, **({"optimizers": flow.optimizers} if flow is not None else {}), **known)


def alert(kind: str = "dead", site: str = "net.relu", **changes: Any) -> Alert:
    return Alert(kind, site, 1.0, 0.7, 0, 10, "warning", "seen.", advice=("Old",), **changes)


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
    cause = judged(weights.offset_bias, alert(), facts)
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
    cause = judged(weights.offset_bias, alert(), facts)
    assert cause is None or not cause.decisive


@pytest.mark.parametrize(("kind", "lr", "to"), [("AdamW", 2.0, 3e-3), ("SGD", 30.0, 0.1)])
def test_a_rate_beyond_the_usual_is_the_cause_and_the_remedy_is_a_usual_one(kind: str, lr: float, to: float) -> None:
    cause = judged(rates.rate_too_high, alert("update_too_large", f"0-{kind}"), Facts(flow=flow(0.5, lr, kind, -0.1)))
    assert cause is not None
    assert cause.decisive
    assert f"The learning rate is {lr:.3g}; {kind}'s usual range is " in cause.statement
    assert "its steps gain -0.1 of what their gradients predict" in cause.evidence_for
    first, second = cause.remedies
    assert (first.op, first.target, first.from_, first.to) == ("set", "optimizer.lr", lr, to)
    assert second.to == pytest.approx(to / 10)


def test_weight_decay_is_not_advised_where_it_is_usual_and_is_where_it_is_not() -> None:
    usual = Facts(flow=flow(0.5, 2.0, weight_decay=0.01))
    assert rates.unusual_setting.judge(alert("update_too_large", "0-AdamW"), usual) is None
    found = with_causes(alert("update_too_large", "0-AdamW"), usual)
    assert found.causes[0].name == "rate_too_high"
    assert "weight_decay" not in found.text
    cause = judged(rates.unusual_setting, alert("update_too_large", "0-AdamW"), Facts(flow=flow(weight_decay=30.0)))
    assert judged(rates.unusual_setting, alert("settings", "net.drop"), Facts(flow=flow(weight_decay=30.0))) is None  # of a module
    assert judged(rates.unusual_setting, alert("settings", "0-AdamW"), Facts(flow=flow(weight_decay=30.0))) == cause
    assert cause is not None
    assert cause.statement == "weight_decay of 0-AdamW is 30; 0.01 is usual."
    assert cause.remedies[0].target == "optimizer.weight_decay"
    assert cause.remedies[0].to == 0.01


@pytest.mark.parametrize(("kind", "usual"), [("Adam", 1e-4), ("SGD", 1e-4), ("AdamW", 0.01)])
def test_a_decay_that_is_added_to_the_gradient_is_usually_smaller(kind: str, usual: float) -> None:
    cause = judged(rates.unusual_setting, alert("optimizer_settings", f"0-{kind}"), Facts(flow=flow(kind=kind, weight_decay=1.0)))
    assert cause is not None
    assert [(remedy.target, remedy.to) for remedy in cause.remedies] == [("optimizer.weight_decay", usual)]


def test_clipping_is_set_to_the_usual_norm_where_nothing_clips() -> None:
    spike = alert("spike", "0-AdamW", batch=3)
    cause = judged(large_steps.unclipped, spike, Facts(flow=flow(), clip=steps(1.3, 60.0)))
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("trainer.gradient_clip_val", 1.0)
    assert large_steps.unclipped.judge(spike, Facts(flow=flow(), clip=steps(1.3, 60.0), setup=clipped_at(1.0))) is None


def test_a_schedule_that_is_too_short_is_made_as_long_as_the_training() -> None:
    over = flow(lr=0.0, lr_peak=1e-3, lr_initial=1e-3, low_steps=300)
    facts = Facts(
        flow=over,
        schedules=(ScheduleStats("CosineAnnealingLR", "T_max", 50, True, 0, False),),
        setup=TrainingSetup(device=torch.device("cpu"), planned_steps=400),
    )
    cause = judged(rates.wrong_schedule, alert("lr_zero", "0-AdamW"), facts)
    assert cause is not None
    assert cause.decisive
    assert [(r.op, r.target, r.from_, r.to) for r in cause.remedies] == [
        ("set", "scheduler.T_max", 50, 400),
        ("remove", "scheduler", "CosineAnnealingLR", None),
    ]
    rises = dataclasses.replace(facts, flow=flow(lr=9e-4, lr_peak=1e-3, lr_initial=1e-3))
    cause = judged(rates.wrong_schedule, alert("lr_zero", "0-AdamW"), rises)
    assert cause is not None
    assert cause.decisive  # it is back at its peak, and its length says why
    assert cause.evidence_for[-1] == "its T_max is 50, and 400 steps are planned"
    by_step = dataclasses.replace(facts, schedules=(ScheduleStats("ExponentialLR", "", 0, False, 0, False),))
    cause = judged(rates.wrong_schedule, alert("lr_zero", "0-AdamW"), by_step)
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("scheduler.interval", "epoch")


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


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.causes], ids=lambda kind: kind.name)
def test_causes_of_every_kind_say_nothing_where_nothing_is_known(kind: Any) -> None:
    for one in kind.causes:
        assert one.title
        assert one.remedies
        cause = judged(one, dataclasses.replace(alert(kind.name), value=0.5), Facts())
        assert cause is None or cause.evidence_for == ("seen.",), one.name  # what a rule states as a fact
        for remedy in cause.remedies if cause else ():
            assert remedy.op in OPS
    assert code.NONFINITE
    assert large_steps.STEP_SIZE
