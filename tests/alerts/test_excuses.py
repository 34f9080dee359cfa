"""Excuses: named conditions that lower what a rule finds, applied by the rule book and shown with the alert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from lightning_hooks.alerts import RULES, Alert, FeatureReport, Missing, ParameterSetup, Rule, Zero
from lightning_hooks.alerts.explain import excuses_of, explain
from lightning_hooks.declare.rule import Excuse, excused
from tests.support.judged import judged

EXCUSES = {excuse.name: excuse for rules in RULES.values() for rule in rules for excuse in rule.excuses}


@dataclass(frozen=True, slots=True, eq=False)
class Loud(Rule):
    """A rule of the user's own."""

    kind: ClassVar[str] = "loud"
    excuses: ClassVar[tuple[Excuse, ...]] = (
        Excuse("mumbles", "it is quiet", lambda rule, alert, report: report.step < rule.soon and alert.site == "a"),
        Excuse(
            "settles",
            "it was louder",
            lambda _, __, report: f"it was louder in {len(report.earlier)} windows" if report.earlier else "",
        ),
        Excuse("whispers", "it is next to nothing", lambda _, alert, __: alert.value < 1, lowers_to=None),
    )

    soon: int = 10

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at two sites."""
        yield self.alert(report, "a", float(report.epoch), 1.0, "critical", "it is loud.", "Common cause: noise.")
        yield self.alert(report, "b", 2.0, 1.0, "critical", "it is loud.")


def window(step: int, epoch: int = 1) -> FeatureReport:
    return FeatureReport(epoch, step, {}, (), 4, 4)


def test_the_first_excuse_that_holds_lowers_an_alert_and_is_named_in_its_diagnosis() -> None:
    quiet, other = judged(Loud(), window(9))
    assert (quiet.severity, quiet.diagnosis) == ("info", "Common cause: noise. It is an info: it is quiet (mumbles).")
    assert (other.severity, other.diagnosis) == ("critical", "")
    quiet, other = judged(Loud(soon=5), window(9), [window(1), window(2)])
    assert quiet.diagnosis == "Common cause: noise. It is an info: it was louder in 2 windows (settles)."
    assert other.diagnosis == "It is an info: it was louder in 2 windows (settles)."


def test_an_excuse_may_leave_no_alert() -> None:
    assert [alert.site for alert in judged(Loud(soon=0), window(9, epoch=0))] == ["b"]


def test_a_severity_that_the_user_has_set_is_not_lowered() -> None:
    assert {alert.severity for alert in judged(Loud(severity="warning"), window(9))} == {"warning"}
    assert [alert.site for alert in judged(Loud(severity="warning"), window(9, epoch=0))] == ["b"]  # and no alert is none


def test_an_excuse_never_makes_an_alert_more_severe() -> None:
    (held,) = [excuse for excuse in RULES_OF["exploding"].excuses if excuse.name == "loss_falls"]
    assert held.lowers_to == "warning"
    rule = Loud()
    info = rule.alert(window(9), "a", 2.0, 1.0, "info", "it is loud.")
    assert excused(rule, info, window(9)) is info


RULES_OF = {rule.kind: rule for rules in RULES.values() for rule in rules if rule.excuses}


def test_every_excuse_has_one_name_and_a_clause_and_is_on_the_page_of_its_kind() -> None:
    found = [excuse for rules in RULES.values() for rule in rules for excuse in rule.excuses]
    assert {"converged", "first_step_only", "loss_falls", "inside_library"} <= EXCUSES.keys()
    for excuse in found:
        assert excuse.name.isidentifier()
        assert excuse.because[0].islower()
        assert not excuse.because.endswith(".")
    for kind, rule in RULES_OF.items():
        printed = " ".join(" ".join(explain(kind)).split())
        for excuse in rule.excuses:
            assert excuse in excuses_of(kind)
            assert f"{excuse.name}: {excuse.because}." in printed


@pytest.mark.parametrize("rule", [Zero(), Missing()])
def test_a_part_of_a_librarys_model_is_shown_with_the_class_that_holds_it(rule: Any, gradients: Any) -> None:
    held = ParameterSetup(10, 2, True, False, ("0-Adam",), 10, 0.1, 0.1, spare="a part of Bert (from transformers)")
    found = {"zero_fraction": 1.0} if isinstance(rule, Zero) else {"steps": 0, "missing_steps": 4}
    report = gradients({}, parameters=[found, {}])
    (alert,) = judged(rule, replace(report, setups={"weight0": held, "weight1": replace(held, elements=10)}))
    name = "inside_library" if isinstance(rule, Zero) else "unused_part"
    assert alert.severity == "info"
    assert alert.diagnosis.endswith(f" It is an info: it is a part of Bert (from transformers) ({name}).")
