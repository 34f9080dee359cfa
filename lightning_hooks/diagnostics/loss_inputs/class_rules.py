"""Weights of classes that make rare ones count for even less, and views that take other numbers for classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Rule, percent
from lightning_hooks.diagnostics.loss_inputs.class_weights import RARE
from lightning_hooks.diagnostics.reports import FeatureReport


@dataclass(frozen=True, slots=True, eq=False)
class ClassWeights(Rule):
    """Weights of classes that are upside down: of a rare class they make even less.

    Weights are there to make up for classes that are rare; where they are the numbers of the classes, or the share of positive
    targets, the model learns to name the frequent ones only.

    Attributes:
        ratio: Mean weight of the labels over that of the classes from which frequent classes weigh more.
        share: Share of the columns of a binary cross entropy whose positive targets must be rare, and weighted down by half.
    """

    kind: ClassVar[str] = "settings"
    shares: ClassVar[tuple[str, ...]] = ("share",)

    ratio: float = 1.3
    share: float = 0.5

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per loss."""
        advice = ("Weigh each class by one over its number: the rarer it is, the more",)
        for site, outputs in report.outputs.items():
            if outputs.frequent_weight >= self.ratio:
                yield self.alert(
                    report, site, outputs.frequent_weight, self.ratio, "warning",
                    f"its labels weigh {outputs.frequent_weight:.3g} times as much as its classes do (limit {self.ratio:g}): "
                    "frequent classes have the large weights, and rare ones count for even less.",
                    "Common cause: weights that are the numbers of the classes, not one over them.",
                    advice=advice,
                )  # fmt: skip
        for site, targets in report.targets.items():
            if targets.weighted_down >= self.share:
                yield self.alert(
                    report, site, targets.weighted_down, self.share, "warning",
                    f"its positive targets are rare (below {percent(RARE)}), and pos_weight makes them count for less than half "
                    f"(in {percent(targets.weighted_down)} of its columns; limit {percent(self.share)}).",
                    "Common cause: positives over negatives, where it is to be negatives over positives.",
                    advice=("Pass pos_weight = negatives / positives", *advice),
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ViewedClasses(Rule):
    """A cross entropy whose classes, the last dimension of a layer's output, were brought to the second one by a view.

    A view keeps the numbers in their order, so that a class gets those of other places; ``transpose`` moves the dimension.
    """

    kind: ClassVar[str] = "output_range"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per loss."""
        for site, stats in report.outputs.items():
            if stats.viewed:
                yield self.alert(
                    report, site, float(stats.viewed), 0.0, "warning",
                    f"its input is a view, or reshape, of a tensor with its {stats.classes} classes last, in {stats.viewed} of "
                    f"{stats.calls} sampled calls: what it takes for one class are numbers of several places.",
                    "A view keeps the order of the numbers, and does not move a dimension.",
                    advice=("Use transpose(1, 2), or permute, in place of view or reshape",
                        "Flatten both: logits.flatten(0, 1) and target.flatten()"),
                )  # fmt: skip


__all__ = ["ClassWeights", "ViewedClasses"]

KINDS: tuple[Kind, ...] = ()  # of other files
RULES = (ClassWeights(), ViewedClasses())
