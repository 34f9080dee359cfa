"""The residual stream: channels far larger than the others, and a stream that grows from block to block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from statistics import median
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped
from lightning_hooks.diagnostics.causes import code, rates, weights
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.diagnostics.residual_stream.table import ResidualStats

NEAR = 0.25  # share of the largest number of its type above which a stream is about to overflow: two bits are left
# How much of its input a block's output holds at least, as the median of its blocks, where there is a residual stream.
CARRIED = 0.25


def stacks(report: FeatureReport) -> list[dict[str, ResidualStats]]:
    """The blocks of each stack, in the order of depth."""
    return [*map(dict, grouped((stats.stream, (name, stats)) for name, stats in report.residual.items()).values())]


def streams(report: FeatureReport) -> Iterator[dict[str, ResidualStats]]:
    """The blocks of each residual stream; blocks that hand on something unrelated are none."""
    for blocks in stacks(report):
        carried = [stats.carried for stats in blocks.values() if stats.carried is not None]
        if not carried or median(carried) >= CARRIED:  # an input by keyword is not known
            yield blocks


def first_of(blocks: Mapping[str, ResidualStats]) -> tuple[str, str]:
    """The block that an alert names.

    Args:
        blocks: Those with a problem, in the order of depth.

    Returns:
        The first of them whose output is about to overflow its type, or has overflowed, and words that say so; the first of
        all and none where none is.
    """
    for name, stats in blocks.items():
        if stats.nonfinite_fraction > 0:
            return name, "; it has values that are NaN or infinite"
        if stats.largest > NEAR * stats.limit:
            return name, f"; its largest value is {stats.largest:.3g}, and its type ends at {stats.limit:.3g}"
    return next(iter(blocks)), ""


class ActivationOutliers(Rule, kind="activation_outliers"):
    """One channel of the residual stream that is far larger than the others.

    Trained language models have such channels, and rely on them (Sun et al., "Massive Activations in Large Language Models", 2024,
    arXiv 2402.17762): it is an info. They cost precision where activations are quantised or in half precision, and in float16
    they overflow: then it is a warning.

    Attributes:
        threshold: RMS of the largest channel over that of the median one, above which it counts.
    """

    threshold: float = 100.0

    def __call__(self, report: FeatureReport) -> Alerts:
        for blocks in streams(report):
            found = {name: stats for name, stats in blocks.items() if stats.channel_ratio > self.threshold}
            if found:
                name, overflow = first_of(found)
                stats = found[name]
                others = f", and so it is behind {len(found)} of {len(blocks)} blocks" * (len(found) > 1)
                yield self.finding(
                    report, name, stats.channel_ratio, self.threshold,
                    f"channel {stats.channel} of its output has an RMS of {stats.channel_rms:.3g}, the median channel "
                    f"{stats.median_channel_rms:.3g} (ratio {stats.channel_ratio:.3g}, limit {self.threshold:.3g})"
                    f"{others}{overflow}.",
                    conclusive=overflow,
                )  # fmt: skip


class ResidualGrowth(Rule, kind="residual_growth"):
    """A residual stream that is far larger behind the last blocks than behind the first.

    Each block of a pre-norm model adds something of about the same size, so that the stream grows as the root of the depth; a
    thousandfold growth means that blocks multiply it. Blocks then hardly change the stream that they are given, and in float16 it
    overflows: that is a warning, everything else an info.

    Attributes:
        threshold: RMS behind a block over the RMS behind the first one, above which it counts.
    """

    threshold: float = 100.0
    min_blocks: ClassVar[int] = 3  # blocks below which a stack is not judged

    def __call__(self, report: FeatureReport) -> Alerts:
        for blocks in streams(report):
            first, last = next(iter(blocks.values())), next(reversed(blocks.values()))
            found = {name: stats for name, stats in blocks.items() if stats.rms > self.threshold * first.rms > 0}
            if found and len(blocks) >= self.min_blocks:
                name, overflow = first_of(found)
                growth = found[name].rms / first.rms
                yield self.finding(
                    report, name, growth, self.threshold,
                    f"the residual stream behind it has an RMS of {found[name].rms:.3g}, {growth:.3g} times that behind the "
                    f"first of {len(blocks)} blocks (limit {self.threshold:.3g}); behind the last one it is "
                    f"{last.rms:.3g}{overflow}.",
                    conclusive=overflow,
                )  # fmt: skip


class ResidualDoubling(Rule, kind="residual_growth"):
    """What blocks are given grows by about the same factor from each block to the next.

    A block that adds something of its own makes the stream longer by it: with He's initialisation and no norm by a factor of
    ``sqrt(2)``. A larger one at every block means that the stream is added more than once, or multiplied.

    Attributes:
        factor: Median over the blocks of the RMS of a block's input over that of the block before, above which it counts.
    """

    factor: ClassVar[float] = 1.8
    threshold: ClassVar[float] = 100.0  # RMS of the last block's input over the first one's, above which it counts
    min_blocks: ClassVar[int] = 6  # blocks below which a stack is not judged

    def __call__(self, report: FeatureReport) -> Alerts:
        for stack in stacks(report):
            blocks = {name: stats.entered_rms for name, stats in stack.items() if stats.entered_rms is not None}
            sizes = [size for size in blocks.values() if 0 < size < math.inf]
            factor = median([later / earlier for earlier, later in pairwise(sizes)] or [0.0])
            if len(blocks) == len(sizes) >= self.min_blocks and factor > self.factor and sizes[-1] > self.threshold * sizes[0]:
                yield self.finding(
                    report, [*blocks][1], factor, self.factor,
                    f"the input of each of {len(blocks)} blocks is {factor:.3g} times as large as that of the one before (median, "
                    f"limit {self.factor:g}), from {sizes[0]:.3g} to {sizes[-1]:.3g} in all: every block multiplies what is handed "
                    "on.",
                    advice=("Add the input of a block once", "Normalise the input of each block"),
                )  # fmt: skip


__all__ = ["ActivationOutliers", "ResidualDoubling", "ResidualGrowth"]

KINDS = (
    Kind(
        "residual_growth", "A residual stream that grows from block to block", group="Attention, experts, residual streams",
        states="symptom",
        causes=(weights.scaled_shortcut, weights.initial_scale, weights.offset_bias, rates.rate_too_high, code.half_overflow),
        meaning="The residual stream is far larger behind a late block than behind the first one: blocks multiply what they are "
        "given, or each block's input is about twice that of the one before. Late blocks then hardly change the stream, and in "
        "float16 it may overflow.",
        formula="growth = rms of a block's output / rms of the first block's output\n\n"
        "alert if growth > {ResidualGrowth.threshold}, in a stack of at least {ResidualGrowth.min_blocks} blocks\n"
        "or if the rms of each block's input is {ResidualDoubling.factor} times that of the one before (median), and the last "
        "one's\n"
        "   {ResidualDoubling.threshold} times the first one's, in at least {ResidualDoubling.min_blocks} blocks",
        inconclusive="unless a block's largest value is above a quarter of what its type holds, or every block doubles its input",
        advice=("Normalise what each branch reads (pre-norm)", "Start each branch's last layer smaller, by the root of the depth",
            "In float16, train in bfloat16"),
    ),
    Kind(
        "activation_outliers", "A few channels far larger than the others", group="Attention, experts, residual streams",
        states="symptom",
        causes=(weights.offset_bias,),
        meaning="One channel of the residual stream (what a block hands on to the next) is far larger than the others. Trained "
        "language models have such channels (Sun et al. 2024), so it is an info; in float16 they may overflow.",
        formula="channel_ratio = rms of the largest channel / rms of the median channel, of a block's output\n\n"
        "alert if channel_ratio > {ActivationOutliers.threshold}",
        inconclusive="where the block's largest value is below a quarter of what its type holds",
        advice=("Look at the bias and the normalisation weight of that channel", "In float16, train in bfloat16",
            "Before quantising, give such channels a scale of their own"),
    ),
)  # fmt: skip
