"""Rules over feature reports, just below and just above their thresholds."""

import math
from dataclasses import replace

import pytest

from lightning_hooks.alerts import Constant, Dead, NonfiniteFeatures, Saturated, Silent
from tests.support.judged import judged

RULES = [
    # rule, change that is still fine, change that is not, value, threshold, severity, words of the remedy
    (Dead(), {"dead_fraction": 0.7}, {"dead_fraction": 0.71}, 0.71, 0.7, "warning", "LeakyReLU or GELU"),
    (Dead(0.2), {"dead_fraction": 0.2}, {"dead_fraction": 0.21}, 0.21, 0.2, "warning", "lower learning rate or a warm-up"),
    (Dead(), {"dead_fraction": None}, {"dead_fraction": 1.0}, 1.0, 0.7, "critical", "bias and initialisation"),
    (Saturated(), {"saturated_fraction": 0.5}, {"saturated_fraction": 0.51}, 0.51, 0.5, "warning", "normalisation layer"),
    (Saturated(0.1), {"saturated_fraction": None}, {"saturated_fraction": 0.2}, 0.2, 0.1, "warning", "smaller initialisation"),
    (Saturated(), {"saturated_fraction": math.nan}, {"saturated_fraction": 1.0}, 1.0, 0.5, "warning", "Normalise the inputs"),
    (Constant(), {"std": 1.1e-6}, {"std": 0.9e-6}, 0.9e-6, 1e-6, "warning", "Check the data that reaches it"),
    (Constant(0.1), {"std": 0.101}, {"std": 0.1}, 0.1, 0.1, "warning", "layers before it"),
    (Constant(), {"count": 1, "std": 0.0}, {"std": 0.0, "rms": 0.0, "mean": 0.0}, 0.0, 1e-6, "warning", "layers before it"),
    (Constant(), {"std": math.nan, "rms": math.nan, "count": 0}, {"std": 0.0}, 0.0, 1e-6, "warning", "every value of its output"),
    (
        NonfiniteFeatures(), {"nonfinite_fraction": 0.0}, {"nonfinite_fraction": 1e-6}, 1e-6, 0.0, "critical",
        "Try a lower learning rate or gradient clipping",
    ),
    (
        NonfiniteFeatures(0.1), {"nonfinite_fraction": 0.1}, {"nonfinite_fraction": 0.11}, 0.11, 0.1, "critical",
        "Check the inputs",
    ),
]  # fmt: skip
KINDS = {Dead: "dead", Saturated: "saturated", Constant: "constant", NonfiniteFeatures: "nonfinite"}


@pytest.mark.parametrize(("rule", "fine", "faulty", "value", "threshold", "severity", "remedy"), RULES)
def test_a_rule_at_its_threshold(features, rule, fine, faulty, value, threshold, severity, remedy):
    (alert,) = rule(features({}, fine, faulty, {}))
    assert (alert.kind, alert.site, alert.severity) == (KINDS[type(rule)], "site2", severity)
    assert (alert.value, alert.threshold, alert.epoch, alert.step) == (pytest.approx(value), threshold, 3, 120)
    assert remedy in alert.text


@pytest.mark.parametrize("rule", [Dead(), Saturated(), Constant(), NonfiniteFeatures(), Silent()], ids=repr)
def test_healthy_sites_give_no_alert(features, rule):
    assert list(rule(features({}, {}))) == []
    assert list(rule(features())) == []


def test_a_wholly_dead_rectifier_is_dead_and_not_constant_too(features):
    report = features({"dead_fraction": 1.0, "std": 0.0, "mean": 0.0, "rms": 0.0})
    assert [alert.kind for rule in (Dead(), Constant()) for alert in rule(report)] == ["dead"]


@pytest.mark.parametrize(("samples", "share", "found"), [(15, 0.9, False), (16, 0.9, True), (1, 1.0, True), (None, 0.9, True)])
def test_units_that_were_hardly_seen_are_not_called_dead(features, samples, share, found):
    assert bool(list(Dead()(features({"dead_fraction": share, "unit_samples": samples})))) is found


@pytest.mark.parametrize(("units", "share", "found"), [(63, 0.79, False), (63, 0.81, True), (64, 0.71, True)])
def test_of_few_units_more_may_be_dead(features, units, share, found):
    given = features({"dead_fraction": share, "unit_samples": 100, "count": 100 * units})
    alerts = list(Dead()(given))
    limit = 0.8 if units < 64 else 0.7
    assert [alert.threshold for alert in alerts] == [limit] * found
    assert all(f"(limit {limit:.0%})" in alert.message for alert in alerts)


def test_units_that_die_in_training_count_earlier(features):
    first, now = features({"dead_fraction": 0.3}), features({"dead_fraction": 0.65})
    assert not list(Dead()(now))
    (alert,) = Dead()(now.after([first]))
    assert alert.threshold == 0.6
    assert "(limit 60%; 30% at first)" in alert.message


@pytest.mark.parametrize(
    ("now", "before", "severity"),
    [(True, True, "info"), (True, False, "warning"), (False, False, "warning"), (False, True, "warning")],
)
def test_what_was_constant_from_the_start_in_a_library_s_model(features, now, before, severity):
    still = features({"std": 0.0}, {})
    given, first = (replace(still, of_libraries=("site0",) if known else ()) for known in (now, before))
    (alert,) = judged(Constant(), given, [first])
    assert alert.severity == severity


def test_silent_sites_are_distinguished_from_dead_ones(features):
    alerts = list(Silent()(features({}, silent=("branch", "aux"))))
    assert [(alert.kind, alert.site, alert.severity, alert.epoch) for alert in alerts] == [
        ("silent", "branch", "info", 3),
        ("silent", "aux", "info", 3),
    ]
    assert "not zero and not dead" in alerts[0].text
    assert "torch.compiler.reset()" in alerts[0].text
