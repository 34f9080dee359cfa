"""Rules changed, muted, added, by pattern: what is in force where, and which errors it raises."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar

import pytest

from lightning_hooks.alerts import (
    RULES,
    Alert,
    ClipIneffective,
    ClipReport,
    Constant,
    ConstantTargets,
    Dead,
    FeatureReport,
    GradientFlowReport,
    Mute,
    OffsetInput,
    Rule,
    RuleBook,
    SameSamples,
    SameTargets,
    TinyInput,
    Vanishing,
    WastedClip,
)
from lightning_hooks.declare.rulebook import rules_by_report


def book(*given: Any) -> RuleBook:
    return RuleBook(RULES[FeatureReport], given, FeatureReport)


def found(rules: RuleBook, report: Any, history: Any = ()) -> list[tuple[str, str]]:
    return [(candidate.alert.kind, candidate.alert.site) for candidate in rules.judge(report.after(history))]


@pytest.mark.parametrize(
    ("given", "sites"),
    [
        ((), ["site1", "site2"]),
        ((Dead(0.8),), ["site2"]),
        (({"kind": "dead", "threshold": 0.8},), ["site2"]),
        (({"kind": "dead", "threshold": 0.2, "sites": ["site0"]},), ["site0", "site1", "site2"]),
        ((Dead(0.95, sites="site2"),), ["site1"]),
        ((Dead(0.95, sites=("site1", "*2")), Dead(0.2, sites="site1")), ["site1"]),
        ((Dead(0.2, sites="site1"), Dead(0.95)), []),
        (({"class_path": "lightning_hooks.alerts.Dead", "init_args": {"threshold": 0.8}},), ["site2"]),
        (({"class_path": "lightning_hooks.alerts.Mute", "init_args": {"sites": "site2"}},), ["site1"]),
        (("-dead",), []),
        (("-dead at *1",), ["site2"]),
        ((Mute("dead", ["site1", "site2"]),), []),
        ((Mute(sites="site2"),), ["site1"]),
        (({"mute": "dead", "sites": "site1"},), ["site2"]),
        ((Mute("dead", "site1"), Dead(0.2)), ["site0", "site2"]),  # a mute holds wherever it stands
    ],
)
def test_the_last_rule_for_a_site_decides(features: Any, given: Any, sites: list[str]) -> None:
    report = features({"dead_fraction": 0.3}, {"dead_fraction": 0.75}, {"dead_fraction": 0.9})
    assert sorted(site for kind, site in found(book(*given), report) if kind == "dead") == sites


def test_a_function_is_added_and_may_look_back(features: Any) -> None:
    def loud(report: FeatureReport) -> Any:
        yield Alert("loud", "site0", 1.0, 0.0, report.epoch, report.step, "warning", "…")

    def growing(report: FeatureReport) -> Any:
        before = report.previous()
        if before is not None and report.sites["site0"].max > before.sites["site0"].max:
            yield Alert("growing", "site0", 1.0, 0.0, report.epoch, report.step, "warning", "…")

    rules = book(loud, growing)
    assert found(rules, features({"max": 2.0})) == [("loud", "site0")]
    assert found(rules, features({"max": 2.0}), [features({"max": 1.0})]) == [("loud", "site0"), ("growing", "site0")]


def test_a_rule_that_raises_is_reported_and_the_others_go_on(features: Any) -> None:
    def broken(report: FeatureReport) -> Any:
        raise KeyError("oops")

    faults: list[Any] = []
    rules = book(broken)
    report = features({"dead_fraction": 0.9})
    candidates = rules.judge(report, on_fault=lambda rule, error: faults.append((rule, repr(error))))
    assert [candidate.alert.kind for candidate in candidates] == ["dead"]
    assert faults == [(broken, "KeyError('oops')")]
    with pytest.raises(KeyError, match="oops"):
        rules.judge(report)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("-dead", TypeError, r"rules must be a list of rules; got '-dead'"),
        ({"kind": "dead"}, TypeError, r"rules must be a list of rules; got \{'kind': 'dead'\}"),
        ([3], TypeError, r"rules holds rules such as Dead\(threshold=0.8\).*; got 3"),
        (["dead"], ValueError, r"a string mutes a kind, as '-silent' or '-dead at encoder\.\*' do; got 'dead'"),
        (["-daed"], ValueError, r"no rule raises 'daed'\. Did you mean 'dead'\?"),
        ([{"kind": "ded"}], ValueError, r"needs the 'kind' of a rule of this monitor \(labels_ignored, .*Did you mean 'dead'\?"),
        ([{"kind": "vanishing"}], ValueError, r"needs the 'kind' of a rule of this monitor"),
        ([{"kind": "dead", "limit": 1}], ValueError, r"Dead has the fields .*threshold.*; got 'limit'"),
        ([{"class_path": "lightning_hooks.alerts.Daed"}], ValueError, r"'lightning_hooks.alerts.Daed' cannot be imported: .*Daed"),
        ([{"class_path": "nowhere"}], ValueError, r"'nowhere' cannot be imported: "),
        ([Vanishing()], ValueError, r"Vanishing reads a GradientFlowReport, and this monitor makes a FeatureReport"),
    ],
)
def test_what_is_no_rule_raises(given: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RuleBook(RULES[FeatureReport], given, FeatureReport)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"sites": 3}, TypeError, r"Dead: sites must be a glob pattern such as 'encoder\.\*', or a list of them; got 3"),
        ({"sites": []}, TypeError, r"got \[\]"),
        ({"times": 2}, ValueError, r"1 <= times <= of: .* got times=2, of=1"),
        ({"times": 0}, ValueError, r"got times=0, of=1"),
        ({"severity": "fatal"}, ValueError, r"severity must be one of info, warning, critical, or None; got 'fatal'"),
    ],
)
def test_what_a_rule_does_not_take(fields: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Dead(**fields)


def test_a_kind_of_several_monitors_is_handed_to_those_whose_rule_has_the_fields() -> None:
    handed = rules_by_report([{"kind": "exploding", "relative": 1e5}, {"kind": "nonfinite", "severity": "warning"}], RULES)
    assert [len(handed[report]) for report in (FeatureReport, GradientFlowReport, ClipReport)] == [1, 2, 1]
    assert handed[GradientFlowReport][0] == {"kind": "exploding", "relative": 1e5}
    unknown = rules_by_report([{"kind": "exploding", "relativ": 1e5}], RULES)
    with pytest.raises(ValueError, match="got 'relativ'"):
        RuleBook(RULES[GradientFlowReport], unknown[GradientFlowReport], GradientFlowReport)


def test_rules_are_handed_to_the_monitors_they_are_for() -> None:
    def own(report: ClipReport) -> Any:
        return ()

    dead, quiet, mute = Dead(0.9), {"kind": "vanishing", "relative": 1e-6}, "-silent"
    said = {"class_path": "lightning_hooks.alerts.AlwaysClipped", "init_args": {"threshold": 0.5}}
    handed = rules_by_report([dead, quiet, own, mute, said], RULES)
    assert handed[FeatureReport] == [dead, mute]
    assert handed[GradientFlowReport] == [quiet, mute]
    assert [type(entry).__name__ for entry in handed[ClipReport]] == ["function", "str", "AlwaysClipped"]
    with pytest.raises(ValueError, match=r"<lambda> does not say which report it reads. Annotate its first parameter"):
        rules_by_report([lambda report: ()], RULES)
    with pytest.raises(ValueError, match=r"\{'kind': 'ded'\} fits none of the monitors, whose kinds are masked_rows, "):
        rules_by_report([{"kind": "ded"}], RULES)


def test_a_kind_that_several_rules_raise() -> None:
    flow = RuleBook(RULES[GradientFlowReport], [{"kind": "constant", "threshold": 0.5}], GradientFlowReport)
    assert [rule.threshold for rule in flow.rules if isinstance(rule, ConstantTargets)] == [0.5]
    features = RuleBook(RULES[FeatureReport], [{"kind": "constant", "threshold": 0.5}], FeatureReport)
    of_features = [type(rule) for rule in features.rules if isinstance(rule, Rule) and rule.kind == "constant"]
    assert of_features == [Constant, SameSamples, TinyInput, OffsetInput, SameTargets]
    assert [rule.threshold for rule in features.rules if isinstance(rule, Constant)] == [0.5]
    clips = RuleBook(RULES[ClipReport], [{"kind": "clip_ineffective", "severity": "info"}], ClipReport)  # of both
    assert {type(rule): rule.severity for rule in clips.rules if isinstance(rule, Rule) and rule.kind == "clip_ineffective"} == {
        ClipIneffective: "info",
        WastedClip: "info",
    }
    with pytest.raises(ValueError, match=r"WastedClip has the fields .*severity; got 'often' in"):
        RuleBook(RULES[ClipReport], [{"kind": "clip_ineffective", "often": 3}], ClipReport)


SHARES = [(kind, field) for kinds in RULES.values() for kind in map(type, kinds) for field in getattr(kind, "shares", ())]


@pytest.mark.parametrize(("kind", "field"), SHARES)
def test_a_share_given_as_percent_raises(kind: Any, field: str) -> None:
    """It would switch the rule off without a word."""
    with pytest.raises(ValueError, match=rf"^{kind.__name__}: {field} must be a share, from 0 to 1; got 60\. 60 % is 0\.6\.$"):
        kind(**{field: 60})
    for wrong in (-0.1, 1e3, math.nan):
        with pytest.raises(ValueError, match=rf"{field} must be a share, from 0 to 1; got {wrong!r}\.$"):
            kind(**{field: wrong})
    for wrong in ("0.6", True, None):
        with pytest.raises(TypeError, match=rf"{field} must be a share, from 0 to 1; got {wrong!r}\.$"):
            kind(**{field: wrong})
    for right in (0, 0.5, 1):
        kind(**{field: right})


def test_a_rule_declares_only_what_rules_have() -> None:
    class Own(Rule, kind="own", judges="epoch"):
        """Declared with its base."""

    assert (Own.kind, Own.judges) == ("own", "epoch")
    with pytest.raises(TypeError, match="Wrong: a rule declares no knid; got"):
        type("Wrong", (Rule,), {}, knid="own")


@pytest.mark.parametrize(
    "decorate",
    [lambda rule: rule, dataclass(frozen=True), dataclass(frozen=True, slots=True, eq=False), dataclass(frozen=True, kw_only=True)],
)
def test_a_rule_is_a_frozen_dataclass_with_a_decorator_and_without(decorate: Any) -> None:
    @decorate
    class Own(Rule, kind="own"):
        limit: float = 1.0
        fixed: ClassVar[int] = 3

    @decorate
    class Stricter(Own):
        limit: float = 0.5
        least: int = 2

    assert [field.name for field in fields(Stricter)][-2:] == ["limit", "least"]
    assert (Own(limit=2.0, sites="a.*").limit, Stricter().limit, Stricter(least=4).least, Stricter.kind) == (2.0, 0.5, 4, "own")
    for rule in (Own(), Stricter()):
        for name in ("limit", "sites"):
            with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
                setattr(rule, name, 3.0)
