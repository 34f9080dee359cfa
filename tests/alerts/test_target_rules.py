"""The rules over what losses with numbers for targets compare, on reports that were made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import FeatureReport, PairedTargets, SameTargets, TargetStats, UnreachableTargets

WELL = TargetStats(calls=10, paired=0, inputs=0, targets=0, pairs=0, compared=9, constant=0)


def of_loss(same_samples: bool | None = False, **numbers: Any) -> FeatureReport:
    return FeatureReport(0, 10, {}, targets={"loss/mse_loss": replace(WELL, **numbers)}, same_samples=same_samples)


def test_paired_targets() -> None:
    assert not list(PairedTargets()(of_loss()))
    (alert,) = PairedTargets()(of_loss(paired=10, inputs=24, targets=12, pairs=288))
    assert (alert.kind, alert.site, alert.severity, alert.value, alert.threshold) == (
        "output_range",
        "loss/mse_loss",
        "warning",
        288,
        24,
    )
    assert "24 numbers and its target of 12 have different shapes" in alert.seen


@pytest.mark.parametrize(
    ("report", "history", "found"),
    [
        (of_loss(), [], False),
        (of_loss(constant=9), [], True),
        (of_loss(constant=9), [of_loss(constant=9)], True),
        (of_loss(constant=8), [], False),
        (of_loss(calls=3, compared=2, constant=2), [], False),
        (of_loss(compared=0), [], False),
        (of_loss(constant=9, same_samples=True), [], False),  # one sample, which another alert is about
        (of_loss(constant=9, same_samples=None), [], False),
        (of_loss(constant=9), [of_loss(constant=9, same_samples=True)], False),
    ],
)
def test_same_targets(report: FeatureReport, history: list[FeatureReport], found: bool) -> None:
    alerts = list(SameTargets()(report.after(history)))
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [("constant", "loss/mse_loss", "warning")] * found


@pytest.mark.parametrize(
    ("bound", "outside", "said"),
    [
        (
            "sigmoid",
            51,
            "5.1% of its targets are outside of 0 to 1 (limit 5%; 1000 were seen), and a sigmoid comes",
        ),
        ("tanh", 1000, "100% of its targets are outside of -1 to 1 (limit 5%; 1000 were seen), and a tanh comes"),
        ("relu", 600, "60% of its targets are below 0 (limit 5%; 1000 were seen), and a relu comes"),
        (
            "binary cross entropy",
            500,
            "50% of its targets are outside of 0 to 1 (limit 5%; 1000 were seen): it expects",
        ),
        (
            "Kullback-Leibler divergence",
            51,
            "5.1% of the numbers of its input are above 0 (limit 5%), where logarithms of probabilities never are.",
        ),
        ("Kullback-Leibler divergence", 50, None),
        ("ctc_loss", 51, "5.1% of the numbers of its input are above 0 (limit 5%), where logarithms of probabilities never are."),
        ("ctc_loss", 50, None),
        ("sigmoid", 50, None),
        ("", 0, None),
    ],
)
def test_targets_that_no_weights_reach(bound: str, outside: int, said: str | None) -> None:
    alerts = list(UnreachableTargets()(of_loss(bounded=1000 if bound else 0, outside=outside, bound=bound)))
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [("output_range", "loss/mse_loss", "warning")] * (
        said is not None
    )
    assert said is None or alerts[0].seen.startswith(said)
    assert not list(UnreachableTargets()(of_loss(bounded=63, outside=63, bound="tanh")))
