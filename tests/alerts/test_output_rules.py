"""The rules over what a model puts out, on reports that were made up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    ClassWeights,
    DropoutInEval,
    DropoutUse,
    FeatureReport,
    LabelsIgnored,
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
    ViewedClasses,
)
from lightning_hooks.declare.alert import Alert
from lightning_hooks.diagnostics.loss_inputs.targets import TargetStats
from tests.support.judged import judged
from tests.support.made_reports import features

WELL = OutputStats(
    calls=10, rows=640, classes=10, entropy=1.0, log_z=3.0, max_log_z=5.0, max_logit=4.0, min_logit=-4.0, zero_fraction=0.0,
    probabilities=0.0, log_probabilities=0.0, mixed_signs=1.0, same=0, across=0, ignored_fraction=0.0, ignored_calls=0,
    lost_calls=0, labels=640, accuracy=0.5, majority=0.1,
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
        ({"probabilities": 1.0, "mixed_signs": 0.0, "min_logit": 0.0, "max_logit": 1.0}, "softmax instead of log_softmax"),
        ({"probabilities": 0.5, "mixed_signs": 0.0}, None),
        ({}, "logits without a log_softmax"),
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


def test_what_bounded_logits_reach() -> None:
    (alert,) = OutputRange()(of_loss(min_logit=-1.0, max_logit=1.0))
    assert "none can get more than 45.1%" in alert.seen


@pytest.mark.parametrize(
    ("numbers", "severity"),
    [
        ({}, None),
        ({"ignored_calls": 5, "ignored_fraction": 0.6}, "warning"),
        ({"ignored_calls": 1}, "info"),
        ({"ignored_calls": 1, "lost_calls": 1}, "warning"),
    ],
)
def test_labels_ignored(numbers: dict[str, Any], severity: str | None) -> None:
    assert severities(LabelsIgnored()(of_loss(**numbers))) == ([("cross_entropy", severity)] if severity else [])


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
    ("use", "words"),
    [
        (DropoutUse(0.1, 8, 0, 0), None),
        (DropoutUse(0.1, 8, 0, 2), "it drops 10% in validation"),
        (DropoutUse(0.1, 8, 3, 0), "in eval mode (3 of 8 calls"),
    ],
)
def test_dropout_in_eval(use: DropoutUse, words: str | None) -> None:
    for name in ("net/dropout", "net/sdpa"):
        alerts = list(DropoutInEval()(FeatureReport(0, 10, {}, dropout={name: use})))
        assert severities(alerts) == ([(name, "warning")] if words else [])
        assert all(words and words in alert.seen for alert in alerts)
        assert all(("dropout_p" in alert.advice[0]) == (name == "net/sdpa") for alert in alerts)


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
    stats = {
        name: RepresentationStats(8, ratio / 2, 0.5, ratio, max(largest, ratio))
        for name, ratio in sites.items()
        if ratio is not None
    }
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


def test_what_never_differed_has_not_collapsed() -> None:
    assert not collapsed({"queries": LOW}, first=LOW)
    assert collapsed({"queries": LOW}, first=LOW, largest=0.2)  # within this window


def test_calls_of_functions_are_no_end() -> None:
    assert collapsed({"net.head": LOW, "relu": None}, functions={"relu": "relu"})


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


@pytest.mark.parametrize(("ratio", "found"), [(1.3, 1), (1.29, 0), (math.nan, 0)])
def test_frequent_classes_that_weigh_more(ratio: float, found: int) -> None:
    alerts = list(ClassWeights()(of_loss(frequent_weight=ratio)))
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [("settings", "cross_entropy", "warning")] * found
    if found:
        assert alerts[0].seen == (
            "its labels weigh 1.3 times as much as its classes do (limit 1.3): frequent classes have the large weights, and rare "
            "ones count for even less. Common cause: weights that are the numbers of the classes, not one over them."
        )


@pytest.mark.parametrize(("share", "found"), [(0.5, 1), (0.4, 0)])
def test_rare_targets_that_are_weighted_down(share: float, found: int) -> None:
    given = FeatureReport(0, 10, {}, targets={"bce_with_logits": TargetStats(4, 0, 0, 0, 0, 0, 0, weighted_down=share)})
    alerts = list(ClassWeights()(given))
    assert len(alerts) == found
    if found:
        assert alerts[0].seen == (
            "its positive targets are rare (below 25%), and pos_weight makes them count for less than half (in 50% of its "
            "columns; limit 50%). Common cause: positives over negatives, where it is to be negatives over positives."
        )


def test_classes_that_a_view_brings_to_the_second_dimension() -> None:
    (alert,) = ViewedClasses()(of_loss(viewed=3))
    assert (alert.kind, alert.severity) == ("output_range", "warning")
    assert alert.seen == (
        "its input is a view, or reshape, of a tensor with its 10 classes last, in 3 of 10 sampled calls: what it takes for one "
        "class are numbers of several places. A view keeps the order of the numbers, and does not move a dimension."
    )
    assert not list(ViewedClasses()(of_loss()))
