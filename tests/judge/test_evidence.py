"""What speaks for and against a problem, and what follows from how probable it is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor, monitors
from lightning_hooks.alerts import FeatureReport, GradientFlowReport, LossReport
from lightning_hooks.declare.cause import Cause
from lightning_hooks.declare.window import Window
from lightning_hooks.judge.evidence import Judge
from tests.support.models import Classifier, trainer


def flow(loss: float) -> GradientFlowReport:
    """A window in which the loss goes from 1 to this."""
    losses = LossReport(32, loss, 0.0, loss, loss, loss, start=1.0, recent=(1.0,) * 24 + (loss,) * 8)
    return GradientFlowReport(0, 32, {}, {}, 1.0, loss=losses)


# Evidence.


def alert(kind: str = "dead", value: float = 0.75, limit: float = 0.7, severity: Any = "warning", **causes: float) -> Alert:
    known = tuple(Cause(name, f"It is {name}.", score) for name, score in causes.items())
    return Alert(kind, "act", value, limit, 0, 32, severity, "seen", causes=known)


def evidence(given: Alert, report: Any = None) -> list[str]:
    return Judge(Window([flow(1.0) if report is None else report])).evidence(given)


SYMPTOM = ["symptom", "kind dead", "symptom, cause unknown", "symptom, loss stands", "a part of it"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (alert("eval_mode"), ["fact", "kind eval_mode"]),
        (alert("eval_mode", left_in_eval_mode=0.4), ["fact", "kind eval_mode", "cause left_in_eval_mode"]),
        (alert("eval_mode", left_in_eval_mode=0.39), ["fact", "kind eval_mode"]),
        (alert(), SYMPTOM),
        (alert(rate_too_high=0.39), SYMPTOM),
        (
            alert(rate_too_high=0.79, offset_bias=0.5),
            ["symptom", "kind dead", "cause rate_too_high", "symptom, cause known", "symptom, loss stands", "a part of it"],
        ),
        (
            alert(rate_too_high=0.8),
            [*SYMPTOM[:2], "cause rate_too_high", "symptom, cause known", "symptom, cause likely", *SYMPTOM[3:]],
        ),
        (
            alert("loss_plateau", 1.0),
            ["outcome", "kind loss_plateau", "outcome, cause unknown", "outcome, loss stands", "all of it"],
        ),
    ],
)
def test_the_evidence_of_facts_symptoms_and_outcomes(given: Alert, expected: list[str]) -> None:
    assert evidence(given) == expected


@pytest.mark.parametrize(
    ("kind", "value", "limit", "size"),
    [
        ("dead", 0.999, 0.7, "all of it"),
        ("dead", 0.9989, 0.7, "a part of it"),
        ("exploding", 1.49, 1.0, "near its limit"),
        ("exploding", 1.5, 1.0, "over its limit"),
        ("exploding", -10.0, 1.0, "over its limit"),
        ("exploding", 10.1, 1.0, "far over its limit"),
        ("vanishing", 1.0, 1.49, "near its limit"),  # below its limit is what is wrong
        ("vanishing", 1.0, 10.0, "over its limit"),
        ("vanishing", 1.0, 10.1, "far over its limit"),
        ("vanishing", 0.0, 1.0, "far over its limit"),
        ("exploding", math.inf, 1.0, "far over its limit"),
        ("exploding", 1.0, 0.0, "far over its limit"),
    ],
)
def test_how_far_from_its_limit_a_value_is(kind: str, value: float, limit: float, size: str) -> None:
    assert evidence(alert(kind, value, limit))[-1] == size


@pytest.mark.parametrize(("loss", "course"), [(0.89, "falls"), (0.9, "stands"), (0.05, "falls")])
@pytest.mark.parametrize(("kind", "state"), [("dead", "symptom"), ("overfitting", "outcome")])
def test_the_course_of_the_loss(kind: str, state: str, loss: float, course: str) -> None:
    given = flow(loss)
    assert evidence(alert(kind), given)[-2:] == [f"{state}, loss {course}", "a part of it"]
    unknown = FeatureReport(0, 32, {}, ())
    assert evidence(alert(kind), unknown)[-2] == f"{state}, loss stands"


# How probable it is.


@pytest.mark.parametrize(("found", "severity"), [(0.8, "critical"), (0.7996, "critical"), (0.7994, "info")])
def test_a_problem_below_the_least_probability_is_an_info(found: float, severity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.judge.evidence.probability", lambda names: found)
    judge = Judge(Window([flow(1.0)]))
    judged = judge.judged(alert(severity="critical"), 0.8)
    assert judged == replace(alert(severity=severity), probability=round(found, 3), evidence=tuple(SYMPTOM))
    for stays in (alert("own"), alert(severity="info")):
        assert judge.judged(stays, 0.8) is stays


def test_a_problem_is_at_least_as_probable_as_what_it_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects that are infos, and of the user's own kinds, do not count."""
    monkeypatch.setattr("lightning_hooks.judge.evidence.probability", lambda names: 0.9 if "kind no_progress" in names else 0.5)
    judge, effect = Judge(Window([flow(1.0)])), alert("no_progress", severity="warning")
    judged = judge.judged(alert(severity="warning"), 0.8, [alert("own"), effect])
    assert (judged.kind, judged.severity, judged.probability) == ("dead", "warning", 0.9)
    assert judged.evidence == tuple(judge.evidence(effect))
    without = [judge.judged(alert(severity="warning"), 0.8, [replace(effect, severity="info")]), judge.judged(alert(), 0.8)]
    assert [one.probability for one in without] == [0.5, 0.5]


def loud(report: FeatureReport) -> list[Alert]:
    return [Alert("loud", "net.1", 2.0, 1.0, report.epoch, report.step, "warning", "It is loud.")]


def fitted(monkeypatch: pytest.MonkeyPatch, found: float, epochs: int = 1, **options: Any) -> tuple[list[Alert], TrainingMonitor]:
    """What is passed on of a rectifier of which three quarters are dead, and of the user's own rule."""
    monkeypatch.setattr("lightning_hooks.judge.evidence.probability", lambda names: found)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    with torch.no_grad():
        net[0].bias[16:] = -20.0  # type: ignore[index]
    passed: list[Alert] = []
    rules = [loud, *options.pop("rules", [])]
    options = {"summary": False, "report_dir": None, "every_n_steps": 1, "on_alert": passed.append, "rules": rules, **options}
    monitor = TrainingMonitor(**options)
    x = torch.randn(64, 8)
    trainer([monitor], max_epochs=epochs).fit(Classifier(net, lr=0.01), DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 16))
    return [one for one in passed if one.kind in ("dead", "loud")], monitor


@pytest.mark.parametrize(
    ("found", "options", "expected"),
    [
        (0.9, {}, {"dead": ("warning", 0.9)}),
        (0.7, {}, {"dead": ("info", 0.7)}),
        (0.7, {"min_probability": 0.7}, {"dead": ("warning", 0.7)}),
        (0.5, {}, {"dead": ("info", 0.5)}),
        (0.49, {}, {}),  # in the report only
        (0.4, {"min_probability": 0.4}, {"dead": ("warning", 0.4)}),
        (0.1, {"rules": [{"kind": "dead", "severity": "warning"}]}, {"dead": ("warning", None)}),
    ],
)
def test_what_is_passed_on_of_a_training(found: float, options: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, monitor = fitted(monkeypatch, found, **options)
    assert {one.kind: (one.severity, one.probability) for one in passed} == {**expected, "loud": ("warning", None)}
    assert monitor.features is not None
    (dead,) = [one for one in monitor.features.alerts if one.kind == "dead"]
    assert (dead.severity, dead.probability) == expected.get("dead", ("info", found))
    assert dead.evidence[:2] == (() if dead.probability is None else ("symptom", "kind dead"))


def test_what_was_passed_on_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    passed, monitor = fitted(monkeypatch, 0.9, epochs=3)
    assert [one.kind for one in passed] == ["dead", "loud"]
    for report in monitor.history["features"]:
        (dead,) = [one for one in report.alerts if one.kind == "dead"]
        assert (dead.severity, dead.probability, dead.evidence) == ("warning", 0.9, passed[0].evidence)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ("high", TypeError, "min_probability must be a share, from 0 to 1; got 'high'."),
        (True, TypeError, "min_probability must be a share, from 0 to 1; got True."),
        (80, ValueError, "min_probability must be a share, from 0 to 1; got 80. 80 % is 0.8."),
        (-0.1, ValueError, "min_probability must be a share, from 0 to 1; got -0.1."),
        (math.nan, ValueError, "min_probability must be a share, from 0 to 1; got nan."),
    ],
)
def test_the_least_probability_is_a_share(given: Any, error: type[Exception], words: str) -> None:
    for make in (TrainingMonitor, monitors):
        with pytest.raises(error) as raised:
            make(min_probability=given)
        assert str(raised.value) == words
