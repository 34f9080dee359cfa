"""The alert itself, its kinds, and the window that decides what is news."""

import dataclasses
import inspect
import json

import pytest

import lightning_hooks.alerts as alerts_package
from lightning_hooks.alerts import ALERT_KINDS, Alert, AlertError, AlertWindow
from lightning_hooks.alerts.alert import CLIP_KINDS, FEATURE_KINDS, GRADIENT_KINDS


def alert(kind="dead", site="a", epoch=0):
    return Alert(kind, site, 0.9, 0.5, epoch, 10, "warning", "seen; cause; remedy")


def told(window, *epochs):
    """Which of the sites of each epoch (one letter each) were news."""
    return ["".join(new.site for new in window.news([alert(site=site) for site in sites])) for sites in epochs]


@pytest.mark.parametrize(
    ("rearm", "epochs", "news"),
    [
        (2, ["a", "a", "a", "a"], ["a", "", "", ""]),
        (2, ["a", "", "a"], ["a", "", ""]),
        (2, ["a", "", "", "a"], ["a", "", "", "a"]),
        (1, ["a", "", "a", "a"], ["a", "", "a", ""]),
        (3, ["a", "", "", "a", "", "", "", "a"], ["a", "", "", "", "", "", "", "a"]),
        (2, ["a", "ab", "b", "b", "ab"], ["a", "b", "", "", "a"]),
        (2, ["", "a", "", "a", "", "a"], ["", "a", "", "", "", ""]),
        (2, ["aa"], ["a"]),
    ],
)
def test_an_alert_is_told_holds_and_rearms(rearm, epochs, news):
    assert told(AlertWindow(rearm), *epochs) == news


def test_kinds_at_one_site_are_told_apart():
    window = AlertWindow()
    assert len(window.news([alert("dead"), alert("nonfinite")])) == 2
    assert [new.kind for new in window.news([alert("dead"), alert("constant")])] == ["constant"]


def test_news_are_the_alerts_themselves():
    first = alert()
    assert AlertWindow().news(iter([first]))[0] is first


@pytest.mark.parametrize("cut", range(7))
def test_a_window_resumes_from_plain_state(cut):
    epochs = ["a", "ab", "b", "", "a", "ab", "b"]
    whole = told(AlertWindow(), *epochs)
    first, second = AlertWindow(), AlertWindow()
    before = told(first, *epochs[:cut])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + told(second, *epochs[cut:]) == whole


@pytest.mark.parametrize("rearm", [0, -1])
def test_rearm_is_at_least_one(rearm):
    with pytest.raises(ValueError, match=f"rearm must be at least 1; got {rearm}"):
        AlertWindow(rearm)


def test_kinds_are_listed_once_each():
    assert len(set(ALERT_KINDS)) == len(ALERT_KINDS)
    assert set(ALERT_KINDS) == set(FEATURE_KINDS) | set(GRADIENT_KINDS) | set(CLIP_KINDS)
    assert ALERT_KINDS[:5] == ("dead", "saturated", "constant", "nonfinite", "silent")


def test_every_rule_raises_a_listed_kind_and_every_kind_has_a_rule(features, gradients, clips):
    ill_feature = {"dead_fraction": 0.9, "saturated_fraction": 0.9, "nonfinite_fraction": 0.1, "std": 0.0}
    never = {"steps": 0, "missing_steps": 3}
    parameters = ({"rms": 1e9, "zero_fraction": 1.0, "nonfinite_steps": 1}, never)
    vanished = gradients({"rms": 1e-9}, {"rms": 1.0})  # where others explode, small gradients are no news
    reports = (
        features(ill_feature, silent=("b",)),
        gradients({"rms": 1e-9}, {"nonfinite_fraction": 0.1}, parameters=parameters),
        clips({"rate": 1.0, "norm_after_max": 5.0, "skipped_steps": 90}),
    )
    raised = {}
    rules = [rule for rule in vars(alerts_package).values() if inspect.isclass(rule) and "__call__" in vars(rule)]
    assert len(rules) == len(FEATURE_KINDS) + len(GRADIENT_KINDS) + len(CLIP_KINDS)
    for rule in rules:
        takes = inspect.signature(rule.__call__).parameters["report"].annotation
        report = next(report for report in reports if type(report).__name__ == takes)
        report = vanished if rule.__name__ == "Vanishing" else report
        raised[rule.__name__] = {found.kind for found in rule()(report)}
        assert len(raised[rule.__name__]) == 1
        for found in rule()(report):
            assert found.message.endswith((".", ")."))
    assert set.union(*raised.values()) == set(ALERT_KINDS)


def test_an_alert_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        alert().kind = "other"


def test_an_alert_error_carries_its_alerts():
    one, two = alert("dead", "a"), alert("silent", "b")
    error = AlertError([one, two])
    assert error.alerts == (one, two)
    assert str(error) == "[warning] dead at a: seen; cause; remedy\n[warning] silent at b: seen; cause; remedy"
