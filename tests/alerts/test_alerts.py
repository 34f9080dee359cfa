"""The alert itself, its kinds, and the window that decides what is news."""

import dataclasses
import json
from dataclasses import replace
from itertools import groupby

import pytest

from lightning_hooks.alerts import (
    ALERT_KINDS,
    RULES,
    Alert,
    AlertBook,
    AlertError,
    AttentionReport,
    ClipReport,
    Dead,
    FeatureReport,
    GradientFlowReport,
    RouterReport,
)
from lightning_hooks.alerts.defaults import kinds_of
from lightning_hooks.declare.alert import limit_of
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.rulebook import reports_of


def alert(kind="dead", site="a", epoch=0):
    return Alert(kind, site, 0.9, 0.5, epoch, 10, "warning", "seen; cause; remedy")


def delivered(window, *epochs):
    """Which of the sites of each epoch (one letter each) were news."""
    return ["".join(new.site for new in window.new_alerts([alert(site=site) for site in sites])) for sites in epochs]


@pytest.mark.parametrize(
    ("rearm", "epochs", "news"),
    [
        (2, ["a", "a", "a", "a"], ["a", "", "", ""]),
        (2, ["a", "", "a"], ["a", "", ""]),
        (2, ["a", "", "", "a"], ["a", "", "", "a"]),
        (1, ["a", "", "a", "a"], ["a", "", "a", ""]),
        (3, ["a", "", "", "a", "", "", "", "a"], ["a", "", "", "", "", "", "", "a"]),
        (2, ["a", "ab", "b", "b", "ab"], ["a", "", "", "", ""]),  # one problem, whose site moves
        (2, ["a", "b", "", "c"], ["a", "", "", ""]),
        (2, ["a", "b", "", "", "c"], ["a", "", "", "", "c"]),
        (2, ["", "a", "", "a", "", "a"], ["", "a", "", "", "", ""]),
        (2, ["aa"], ["a"]),
    ],
)
def test_an_alert_is_delivered_holds_and_rearms(rearm, epochs, news):
    assert delivered(AlertBook(rearm), *epochs) == news


def test_kinds_at_one_site_are_distinguished():
    window = AlertBook()
    assert len(window.new_alerts([alert("dead"), alert("nonfinite")])) == 2
    assert [new.kind for new in window.new_alerts([alert("dead"), alert("constant")])] == ["constant"]


def test_news_are_the_alerts_themselves():
    first = alert()
    assert AlertBook().new_alerts(iter([first]))[0] is first


@pytest.mark.parametrize("cut", range(7))
def test_a_window_resumes_from_plain_state(cut):
    epochs = ["a", "ab", "b", "", "a", "ab", "b"]
    whole = delivered(AlertBook(), *epochs)
    first, second = AlertBook(), AlertBook()
    before = delivered(first, *epochs[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + delivered(second, *epochs[cut:]) == whole


@pytest.mark.parametrize("rearm", [0, -1])
def test_rearm_is_at_least_one(rearm):
    with pytest.raises(ValueError, match=f"rearm must be at least 1; got {rearm}"):
        AlertBook(rearm)


def test_kinds_are_listed_once_each():
    assert len(set(ALERT_KINDS)) == len(ALERT_KINDS)
    assert tuple(KINDS) == ALERT_KINDS
    assert [state for state, _ in groupby(kind.states for kind in KINDS.values())] == ["fact", "symptom", "outcome"]


def test_every_rule_has_a_listed_kind_and_every_kind_a_rule():
    assert {rule.kind for rules in RULES.values() for rule in rules} == set(ALERT_KINDS)
    assert set(RULES) == {FeatureReport, AttentionReport, RouterReport, GradientFlowReport, ClipReport}
    assert kinds_of(RouterReport) == ("router_collapse", "dead_experts")
    assert kinds_of(None) == ()
    for reads, rules in RULES.items():
        assert all(reads in reports_of(rule) for rule in rules)


def test_a_record_is_json_without_nan():
    plain = dataclasses.replace(alert(), value=float("nan"), consequences=("zero at b",)).record()
    assert json.loads(json.dumps(plain, allow_nan=False)) == {
        "kind": "dead", "site": "a", "value": "NaN", "threshold": 0.5, "epoch": 0, "step": 10, "severity": "warning",
        "message": "seen; cause; remedy", "since_step": None, "cause": "", "consequences": ["zero at b"], "batch": None,
        "title": "Dead units", "diagnosis": "", "advice": [], "also": [], "samples": [], "causes": [], "remedies": [],
        "probability": None, "evidence": [],
    }  # fmt: skip


def test_an_alert_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        alert().kind = "other"


def test_an_alert_error_carries_its_alerts():
    one, two = alert("dead", "a"), alert("silent", "b")
    error = AlertError([one, two])
    assert error.alerts == (one, two)
    assert str(error) == "\n".join(
        f"[warning] {name} (epoch 0, step 10): seen; cause; remedy" for name in ("dead at a", "silent at b")
    )


def test_an_alert_prints_each_of_its_texts_once() -> None:
    seen, why, first, second = "100% of its units output zero.", "A bias of -20 is the cause.", "Try a lower rate", "Use GELU"
    found = Alert(
        "dead", "net.1", 1.0, 0.7, 0, 32, "critical", seen, diagnosis=why, advice=(first, second), since_step=4, batch=4,
        consequences=("zero at a", "zero at b"),
    )  # fmt: skip
    assert str(found).splitlines() == [
        f"[critical] dead at net.1 (epoch 0, step 32, since step 4, batch 4): {seen}",
        f"  why: {why} Consequences: zero at 2 sites (a, b).",
        "  try: a lower rate (1 more in the report).",
    ]
    for text in (seen, why, first, second):
        assert repr(found).count(text) == 1
    assert eval(repr(found)) == found
    assert found._repr_html_().startswith("<pre><b>[critical] dead at net.1 (epoch 0, step 32, since step 4, batch 4): ")
    assert found._repr_html_().count(seen) == found._repr_html_().count(why) == 1


def test_an_alert_of_the_users_own_needs_a_message_only() -> None:
    own = Alert("quiet", "<b>", 1e-4, 1e-3, 2, 30, "warning", "Its RMS is\n0.0001. Scale it up.")
    assert str(own) == "[warning] quiet at <b> (epoch 2, step 30): Its RMS is 0.0001. Scale it up."
    assert "diagnosis" not in repr(own)
    assert eval(repr(own)) == own
    assert "quiet at &lt;b&gt;" in own._repr_html_()
    one = Alert("quiet", "a", 1e-4, 1e-3, 2, 30, "warning", "quiet", consequences=("zero at b",))
    assert str(one) == "[warning] quiet at a (epoch 2, step 30): quiet\n  Consequences: zero at b."


def test_figures_draw_the_mildest_limit_that_the_last_alerts_are_beyond() -> None:
    assert limit_of("dead", ()) == Dead().threshold
    assert limit_of("mine", ()) == 0.0
    given = [replace(alert(), value=value, threshold=limit, step=step) for value, limit, step in _LIMITS]
    assert limit_of("dead", given) == 0.6
    small = [replace(each, value=each.threshold / 2, kind="update_too_small") for each in given]
    assert limit_of("update_too_small", [*small, *given]) == 0.8


_LIMITS = ((0.5, 0.4, 9), (0.9, 0.8, 10), (0.65, 0.6, 10), (0.9, 0.7, 10))
