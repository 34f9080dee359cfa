"""The alert itself, its kinds, and the window that decides what is news."""

import dataclasses
import json

import pytest

from lightning_hooks.alerts import (
    ALERT_KINDS,
    RULES,
    Alert,
    AlertBook,
    AlertError,
    AttentionReport,
    ClipReport,
    FeatureReport,
    GradientFlowReport,
    RouterReport,
    kinds_of,
)
from lightning_hooks.declare.rulebook import reports_of


def alert(kind="dead", site="a", epoch=0):
    return Alert(kind, site, 0.9, 0.5, epoch, 10, "warning", "seen; cause; remedy")


def delivered(window, *epochs):
    """Which of the sites of each epoch (one letter each) were news."""
    return ["".join(new.site for new in window.new_alerts([alert(site=site) for site in sites])) for sites in epochs]


@pytest.mark.parametrize(
    ("epochs", "news"),
    [
        (["a", "a", "a", "a"], ["a", "", "", ""]),
        (["a", "", "a"], ["a", "", ""]),
        (["a", "", "", "a"], ["a", "", "", "a"]),
        (["a", "ab", "b", "b", "ab"], ["a", "", "", "", ""]),  # one problem, whose site moves
        (["a", "b", "", "c"], ["a", "", "", ""]),
        (["a", "b", "", "", "c"], ["a", "", "", "", "c"]),
        (["", "a", "", "a", "", "a"], ["", "a", "", "", "", ""]),
        (["aa"], ["a"]),
    ],
)
def test_an_alert_is_delivered_holds_and_rearms(epochs, news):
    assert delivered(AlertBook(), *epochs) == news


@pytest.mark.parametrize("cut", range(7))
def test_a_window_resumes_from_plain_state(cut):
    epochs = ["a", "ab", "b", "", "a", "ab", "b"]
    whole = delivered(AlertBook(), *epochs)
    first, second = AlertBook(), AlertBook()
    before = delivered(first, *epochs[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + delivered(second, *epochs[cut:]) == whole


def test_every_rule_has_a_listed_kind_and_every_kind_a_rule():
    assert {rule.kind for rules in RULES.values() for rule in rules} == set(ALERT_KINDS)
    assert set(RULES) == {FeatureReport, AttentionReport, RouterReport, GradientFlowReport, ClipReport}
    assert kinds_of(RouterReport) == ("router_collapse", "dead_experts")
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
        f"[critical] dead at net.1 (epoch 0, step 32, since step 4, batch 4): {why}",
        f"  seen: {seen} Consequences: zero at 2 sites (a, b).",
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
