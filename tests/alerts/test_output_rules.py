"""The rules over what a model puts out, on reports that were made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    FeatureReport,
    OutputRange,
    OutputStats,
    PrecisionNotApplied,
    PrecisionStats,
    RepresentationCollapse,
    RepresentationStats,
    SameOutputs,
    SoftmaxDim,
    SoftmaxUse,
    TargetSums,
)
from lightning_hooks.declare.alert import Alert
from lightning_hooks.diagnostics.loss_inputs.targets import TargetStats
from tests.support.judged import judged
from tests.support.made_reports import features

WELL = OutputStats(
    calls=10, rows=640, classes=10, max_logit=4.0, min_logit=-4.0, zero_fraction=0.0,
    probabilities=0.0, log_probabilities=0.0, mixed_signs=1.0, same=0, across=0, ignored_fraction=0.0, ignored_calls=0,
    lost_calls=0, accuracy=0.5,
)  # fmt: skip


def of_loss(site: str = "cross_entropy", **numbers: Any) -> FeatureReport:
    return FeatureReport(0, 10, {}, outputs={site: replace(WELL, **numbers)})


def severities(alerts: Any) -> list[tuple[str, str]]:
    return [(alert.site, alert.severity) for alert in alerts]


@pytest.mark.parametrize(("share", "rows", "found"), [(0.25, 32, 1), (0.24, 32, 0), (1.0, 31, 0)])
def test_rows_of_targets_that_do_not_sum_to_one(share: float, rows: int, found: int) -> None:
    alerts = list(TargetSums()(of_loss(unnormalized=share, rows=rows)))
    assert [(alert.kind, alert.severity) for alert in alerts] == [("output_range", "warning")] * found


@pytest.mark.parametrize(
    ("numbers", "severity"),
    [
        ({}, None),
        ({"probabilities": 1.0, "min_logit": 0.0, "max_logit": 1.0}, "warning"),
        ({"probabilities": 0.5}, None),
        ({"log_probabilities": 1.0, "max_logit": -0.1}, "info"),
        ({"log_probabilities": 1.0, "max_logit": 0.3}, None),
        ({"min_logit": 0.0, "zero_fraction": 0.3}, "warning"),
        ({"min_logit": 0.0, "zero_fraction": 0.01}, None),  # one of them is 0 by chance
        ({"min_logit": 0.0, "max_logit": 0.0, "zero_fraction": 1.0}, None),  # a head that starts at zero
        ({"min_logit": -0.1, "zero_fraction": 0.3}, None),  # dropout of logits
        ({"min_logit": 0.2}, None),  # cosines of samples that are alike
        ({"min_logit": -0.9999, "max_logit": 0.9999}, "warning"),
        ({"min_logit": -0.9999, "max_logit": 0.9}, None),
        ({"min_logit": -1.2, "max_logit": 0.9999}, None),
        ({"min_logit": -0.9999, "max_logit": 1.005}, None),
        ({"min_logit": -0.9999, "max_logit": 0.9999, "classes": 2, "rows": 5000}, None),
        ({"probabilities": 1.0, "rows": 20}, None),
        ({"probabilities": 1.0, "classes": 1, "rows": 5000}, None),
    ],
)
def test_output_range(numbers: dict[str, Any], severity: str | None) -> None:
    alerts = list(OutputRange()(of_loss(**numbers)))
    assert severities(alerts) == ([("cross_entropy", severity)] if severity else [])


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"log_probabilities": 1.0, "mixed_signs": 0.0, "max_logit": -0.1}, None),
        ({"probabilities": 1.0, "mixed_signs": 0.0, "min_logit": 0.0, "max_logit": 1.0}, "its inputs are probabilities"),
        ({"probabilities": 0.5, "mixed_signs": 0.0}, None),
        ({}, "its inputs are not logarithms of probabilities"),
        ({"mixed_signs": 0.1}, None),
        ({"mixed_signs": 0.0, "max_logit": -0.1}, None),  # logarithms with weights, as in a focal loss
        ({"log_probabilities": 0.3}, None),
        ({"min_logit": 0.0, "mixed_signs": 0.0, "zero_fraction": 0.5}, None),  # of cross_entropy only
        ({"rows": 20}, None),
    ],
)
def test_what_nll_loss_is_given(numbers: dict[str, Any], words: str | None) -> None:
    for site in ("nll_loss", "loss/nll_loss_1"):
        alerts = list(OutputRange()(of_loss(site, **numbers)))
        assert severities(alerts) == ([(site, "warning")] if words else [])
        assert all(words and words in alert.seen for alert in alerts)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ({"across": 10}, True),
        ({"across": 9}, False),
        ({"across": 0}, False),
        ({"across": 10, "log_probabilities": 1.0}, False),  # along both
    ],
)
def test_logarithms_normalised_along_another_dimension(numbers: dict[str, Any], found: bool) -> None:
    assert severities(SoftmaxDim()(of_loss("nll_loss", **numbers))) == ([("nll_loss", "warning")] if found else [])


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (SoftmaxUse(4, 0, 0), False),
        (SoftmaxUse(4, 4, 0), True),
        (SoftmaxUse(4, 3, 0), False),  # a batch that happens to be as long
        (SoftmaxUse(4, 0, 1), True),
    ],
)
def test_softmax_dim(use: SoftmaxUse, found: bool) -> None:
    report = FeatureReport(0, 10, {}, softmax={"net/softmax": use})
    assert severities(SoftmaxDim()(report)) == ([("net/softmax", "warning")] if found else [])


@pytest.mark.parametrize(
    ("precision", "found"),
    [
        (None, False),
        (PrecisionStats("bf16-mixed", 0.0, (), 8), False),
        (PrecisionStats("bf16-mixed", 0.3, ("head",), 8), False),
        (PrecisionStats("16-mixed", 0.9, ("a", "b", "c", "d"), 8), True),
    ],
)
def test_precision_not_applied(precision: PrecisionStats | None, found: bool) -> None:
    alerts = list(PrecisionNotApplied()(FeatureReport(0, 10, {}, precision=precision)))
    assert severities(alerts) == ([("a", "warning")] if found else [])
    assert all("(a, b, c, …)" in alert.seen for alert in alerts)


# Representations: the ratio of each site, in the order of calls; None for one that is not measured.


def ratios(sites: dict[str, float | None], largest: float = 0.0, **more: Any) -> FeatureReport:
    stats = {name: RepresentationStats(8, ratio, max(largest, ratio)) for name, ratio in sites.items() if ratio is not None}
    return replace(features(0, list(sites)), representations=stats, **more)


def collapsed(sites: dict[str, float | None], first: float = 0.3, **more: Any) -> list[Alert]:
    history = [ratios(dict.fromkeys(sites, first)), ratios(sites)]
    return list(judged(RepresentationCollapse(), ratios(sites, **more), history))


LOW = 1e-6


@pytest.mark.parametrize(
    ("sites", "found"),
    [
        ({"net.a": 0.3, "net.b": 0.3, "net.head": 0.3}, []),
        ({"net.a": 0.3, "net.b": 0.3, "net.head": LOW}, ["net.head"]),
        ({"net.a": 0.3, "net.b": LOW, "net.head": LOW}, ["net.b"]),
        ({"net.a": LOW, "net.b": LOW, "net.head": 0.3}, []),  # a gate
        ({"net.a": LOW, "net.b": LOW, "net.head": None}, []),  # one number for each sample
        ({"net.a": 0.3, "net.b": LOW, "net.act": None, "net.head": LOW}, ["net.b"]),
        ({"generator.a": 0.3, "generator.out": LOW, "discriminator.a": 0.3, "discriminator.head": None}, ["generator.out"]),
        ({"net.generator.a": 0.3, "net.generator.out": LOW, "net.critic.a": 0.3, "net.critic.head": 0.3}, ["net.generator.out"]),
        ({"net.blocks.0.up": 0.3, "net.blocks.1.gate": LOW, "net.norm": 0.3, "net.head": 0.3}, []),
        ({"net.blocks.0.up": 0.3, "net.blocks.1.down": LOW, "net.norm": LOW, "net.head": LOW}, ["net.blocks.1.down"]),
        ({"one": LOW}, ["one"]),
        ({}, []),
    ],
)
def test_where_representations_collapse(sites: dict[str, float | None], found: list[str]) -> None:
    assert severities(collapsed(sites)) == [(site, "warning") for site in found]


@pytest.mark.parametrize(
    ("before", "now", "calls", "found"),
    [
        (0.3, LOW, 8, False),
        (LOW, LOW, 8, True),
        (LOW, 0.3, 8, False),
        (0.3, 1e-8, 8, True),  # the same but for roundings
        (0.3, 1e-8, 3, True),
        (0.3, 1e-8, 2, False),
        (None, 1e-8, 8, True),
        (LOW, 1.5 * LOW, 8, True),
        (LOW, 1.6 * LOW, 8, False),  # samples part again
    ],
)
def test_it_must_last_or_be_exact(before: float | None, now: float, calls: int, found: bool) -> None:
    report, history = ratios({"head": now}), [ratios({"head": 0.3}), ratios({"head": before})]
    stats = replace(report.representations["head"], calls=calls)
    assert bool([*judged(RepresentationCollapse(), replace(report, representations={"head": stats}), history)]) == found


@pytest.mark.parametrize(
    ("sites", "named"),
    [
        ({"net.a": 0.3, "net.b": 1e-12, "net.act": None, "net.head": 1e-12}, "net.b"),
        ({"net.a": 0.3, "net.head": 0.3}, "net/cross_entropy"),
        ({"net.a": 1e-12, "net.b": 0.3, "net.head": None}, "net/cross_entropy"),
        ({}, "net/cross_entropy"),
    ],
)
def test_a_loss_that_is_given_the_same_for_all_samples(sites: dict[str, float | None], named: str) -> None:
    def judge(calls: int = 4, same: int = 4, **more: Any) -> list[Alert]:
        return list(SameOutputs()(ratios(sites, outputs={"net/cross_entropy": replace(WELL, calls=calls, same=same)}, **more)))

    assert severities(judge()) == severities(judge(same_samples=False)) == [(named, "warning")]
    assert not judge(same=3)
    assert not judge(2, 2)
    assert not judge(same_samples=True)
    numbers = TargetStats(4, 0, 0, 0, 0, 0, 0, same=4)
    assert severities(list(SameOutputs()(ratios({}, targets={"bce_with_logits": numbers})))) == [("bce_with_logits", "warning")]
