"""Outputs of a model that are the same for all samples of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule
from lightning_hooks.diagnostics.causes import data, steps, weights, wiring
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputStats
from lightning_hooks.diagnostics.loss_inputs.targets import TargetStats
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.trackers.console import shared_prefix


class RepresentationCollapse(Rule, kind="representation_collapse", judges="epoch"):
    """Outputs that have become the same for all samples of a batch, though they differed when training started.

    Samples are compared by their direction (:class:`~lightning_hooks.alerts.RepresentationStats`). Only the end of the model, or of
    a part of it (``generator``, ``encoder``), is judged, and what comes before it: gates, masks and queries inside may be the same
    for all samples on purpose. An end of fewer than 8 numbers a sample is not judged. In healthy trainings without a cross entropy
    the ratio stays above 0.002; some self-supervised methods pass through a low at their start, so that it must last for two
    reports without rising, unless samples are the same but for roundings. Without negatives, stop-gradient or variance term it
    falls below 1e-5.

    Attributes:
        threshold: Variance over the samples of a batch over that within a sample, at or below which samples are the same.
    """

    threshold: float = 5e-4
    started: ClassVar[float] = 0.01  # the ratio of some batch of an earlier report that it must have fallen from
    at_once: ClassVar[float] = 1e-7  # at or below it in ``batches`` sampled batches, all of them, one report is enough
    batches: ClassVar[int] = 3  # the fewest for that
    rises: ClassVar[float] = 1.5  # the ratio over that of the report before above which samples part again

    def __call__(self, report: FeatureReport) -> Alerts:
        for part in _parts([site for site in report.sites if site not in report.functions]):
            end, measured = part[-1], [site for site in reversed(part) if site in report.representations]
            collapsed = list(takewhile(lambda site: self._collapsed(report, site), measured))
            if end in collapsed and self._lasts(report, end):
                site = collapsed[-1]
                ratio = report.representations[site].ratio
                yield self.finding(
                    report, site, ratio, self.threshold,
                    f"its output is the same for all samples of a batch, and it stays so up to {end}: variance over samples is "
                    f"{ratio:.2g} of that within a sample (limit {self.threshold:.2g}), and was "
                    f"{self._first(report, site):.2g}.",
                )  # fmt: skip

    def _collapsed(self, report: FeatureReport, site: str) -> bool:
        return report.representations[site].ratio <= self.threshold and self._first(report, site) >= self.started

    def _lasts(self, report: FeatureReport, site: str) -> bool:
        now = report.representations[site]
        before = [window.representations[site].ratio for window in report.earlier[-1:] if site in window.representations]
        surely = now.calls >= self.batches and now.largest_ratio <= self.at_once
        return surely or any(now.ratio <= self.rises * ratio <= self.rises * self.threshold for ratio in before)

    def _first(self, report: FeatureReport, site: str) -> float:
        return max(r.representations[site].largest_ratio for r in report.windows if site in r.representations)


class SameOutputs(Rule, kind="representation_collapse"):
    """A loss that is given the same numbers for all samples, though the samples differ, and their targets.

    A classifier that first learns how frequent the labels are, or that starts at zero, comes near to it. Exactly the same numbers
    mean that a layer before discards the input: a norm over single numbers, whose bias is left, a mean over what was normalised to
    mean 0, a mask that hides all of it.

    Attributes:
        ratio: Variance over the samples of a batch over that within a sample, at or below which a layer before is named.
    """

    calls: ClassVar[int] = 3  # the fewest sampled calls, all of which must be so
    ratio: ClassVar[float] = 1e-9

    def __call__(self, report: FeatureReport) -> Alerts:
        given: list[tuple[str, OutputStats | TargetStats]] = [*report.outputs.items(), *report.targets.items()]
        measured = [site for site in reversed(report.sites) if site in report.representations]
        same = list(takewhile(lambda site: report.representations[site].largest_ratio <= self.ratio, measured))
        for loss, stats in given:
            if self.calls <= stats.calls == stats.same and not report.same_samples:
                yield self.finding(
                    report, [loss, *same][-1], float(stats.same), float(self.calls),
                    f"what {loss} is given is the same for all samples, in all of its {stats.calls} sampled calls: it does not "
                    "depend on the input.",
                    advice=("Compare the outputs of two samples, layer by layer, and look where they become the same",),
                )  # fmt: skip


def _parts(sites: Sequence[str]) -> list[list[str]]:
    """The sites of each part of a model, in the order of their calls.

    Parts are the submodules of the innermost module that holds all sites. Lists of numbered blocks are no parts, and what is not in
    a part is one with them: the model as a whole.
    """
    shared = shared_prefix(sites)
    parts: dict[str, list[str]] = {}
    for site in sites:
        name, _, inner = site.removeprefix(shared).partition(".")
        in_list = "." in inner and inner.partition(".")[0].isdigit()
        parts.setdefault(name if inner and not in_list else "", []).append(site)
    named = [found for name, found in parts.items() if name]
    if "" in parts or len(named) == 1:  # the whole model, whose end is what is called last
        return [list(sites), *(found for found in named if found[-1] != sites[-1])]
    return named


__all__ = ["RepresentationCollapse", "SameOutputs"]

KINDS = (
    Kind(
        "representation_collapse", "Outputs that are the same for every sample", group="Forward", states="symptom",
        causes=(
            wiring.flat_between, data.constant_data, data.destroyed_inputs, data.large_inputs, weights.constant_weights,
            weights.small_start, weights.large_start, weights.offset_bias, data.nothing_repels, weights.squashing_chain,
            *steps.STEP_SIZE,
        ),
        meaning="The output of the model, or of one of its parts, has become the same for all samples of a batch, up to its size. "
        "It differed when training started. Self-supervised and metric learning without negatives end so, and generators that "
        "have one image for every noise.",
        formula="y = outputs of up to 8 samples, each divided by its root mean square; up to 128 elements of each\n"
        "ratio = variance of y over the samples / variance of y within a sample, each a mean\n\n"
        "alert if ratio <= {RepresentationCollapse.threshold} at the end of the model or of a part of it, in two reports in a "
        "row,\n"
        "         in the second no more than {RepresentationCollapse.rises} times that of the first,\n"
        "      or ratio <= {RepresentationCollapse.at_once} in each of {RepresentationCollapse.batches} and more batches of one "
        "report,\n"
        "      and ratio >= {RepresentationCollapse.started} in a batch before\n"
        "or if all rows that a cross entropy is given are the same but for roundings, in all of at least {SameOutputs.calls} "
        "sampled calls;\n"
        "   of the losses between numbers: all samples of its input, of two numbers at least, while the targets differ",
        advice=("Add what makes samples differ: negatives, a stop-gradient and a predictor, a variance term",
            "Check that the part reads its input, and lower the weight of a divergence or penalty", "Try a lower learning rate"),
    ),
)  # fmt: skip
