"""Alerts of one cause are one problem, across kinds, monitors and windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lightning_hooks.alerts import Alert, AlertBook
from lightning_hooks.alerts.causes import in_order_of_cause, one_cause
from lightning_hooks.declare.hypothesis import Cause
from lightning_hooks.declare.window import Window


def alert(kind: str, site: str = "loss", severity: Any = "warning", **causes: float) -> Alert:
    known = tuple(Cause(name, f"It is {name}.", score) for name, score in causes.items())
    return Alert(kind, site, 1.0, 0.5, 3, 120, severity, "seen", causes=known)


def names(heads: Any) -> dict[tuple[int, str], str]:
    return {kind: head.name for kind, (_, head) in heads.items()}


def test_one_cause_is_one_problem() -> None:
    first, second = alert("spike", rate_too_high=0.9), alert("dead", "net.1", rate_too_high=0.6, large_inputs=0.2)
    assert names(one_cause([(0, first), (1, second)], [])) == {(1, "dead"): "spike at loss"}
    assert names(one_cause([(1, second)], [(0, first)])) == {(1, "dead"): "spike at loss"}


def test_the_same_kind_of_two_monitors() -> None:
    first, second = alert("poor_init", "net.6", initial_scale=0.9, large_start=0.57), alert("poor_init", large_start=0.8)
    assert names(one_cause([(0, first), (1, second)], [])) == {(1, "poor_init"): "poor_init at net.6"}


def test_without_a_decisive_cause() -> None:
    """It belongs to an alert whose cause is one that its kind may have, wherever that comes in the order."""
    vague, sure = alert("dead", "net.1", rate_too_high=0.3), alert("spike", rate_too_high=0.9)
    assert names(one_cause([(1, vague), (0, sure)], [])) == {(1, "dead"): "spike at loss"}
    assert not one_cause([(1, vague), (0, alert("spike", bad_batch=0.9))], [])


def test_what_is_graver_or_an_earlier_cause_is_a_problem_of_its_own() -> None:
    earlier = alert("exploding", rate_too_high=0.9)
    assert not one_cause([(0, alert("nonfinite", "net.1", "critical", rate_too_high=0.9))], [(0, earlier)])
    assert not one_cause(
        [(0, alert("not_updated", "net.fc.weight", written_back=0.6))], [(0, alert("update_too_small", written_back=0.6))]
    )
    both = [(0, earlier), (0, alert("nonfinite", "net.1", "critical", rate_too_high=0.6))]
    assert names(one_cause(both, [])) == {(0, "exploding"): "nonfinite at net.1"}
    surer = [(0, earlier), (1, alert("dead", "net.1", rate_too_high=0.95))]
    assert names(one_cause(surer, [])) == {(0, "exploding"): "dead at net.1"}


def test_other_causes_and_infos_are_other_problems() -> None:
    first = alert("spike", bad_batch=0.9)
    assert not one_cause([(0, first), (1, alert("dead", "net.1", offset_bias=0.9))], [])
    assert not one_cause([(0, first), (1, alert("dead", "net.1", "info", bad_batch=0.9))], [])
    assert not one_cause([(0, alert("spike", bad_batch=0.9)), (1, alert("own", bad_batch=0.4))], [])


def test_a_problem_of_an_earlier_window_stands_for_it(features: Any) -> None:
    """It is among the alerts as it was passed on, and stays open."""
    book, other = AlertBook(), AlertBook()
    head, effect = alert("spike", "0-SGD", rate_too_high=0.9), alert("dead", "site1", rate_too_high=0.9)
    book.new_alerts([head])
    report = features({}, {})
    window = Window([report, replace(report, alerts=(effect,))])
    heads = one_cause([(1, effect)], [(0, one) for one in book.open])
    first, second = in_order_of_cause(window, [book, other], heads=heads).of_report
    assert [(one.name, one.consequences) for one in first] == [("spike at 0-SGD", ("dead at site1",))]
    assert [(one.name, one.severity, one.cause) for one in second] == [("dead at site1", "info", "spike at 0-SGD")]
