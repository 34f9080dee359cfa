"""Features of very different sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.links import always, downstream
from lightning_hooks.declare.rule import Rule
from lightning_hooks.diagnostics.reports import FeatureReport


@dataclass(frozen=True, slots=True, eq=False)
class FeatureScale(Rule):
    """A linear layer that is given raw data of which one feature is many times as large as the others.

    What comes out is a function of that feature alone, and the weights of the others get next to no gradient.

    Attributes:
        ratio: Root mean square of the largest feature over the median of all, above which it counts.
    """

    kind: ClassVar[str] = "feature_scale"

    ratio: float = 1e5

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per layer with such an input."""
        for site, scales in report.feature_scales.items():
            if scales.ratio > self.ratio:
                yield self.alert(
                    report, site, scales.ratio, self.ratio, "warning",
                    f"feature {scales.feature} of the {scales.features} that it is given is {scales.ratio:.2g} times as large as "
                    f"the median of them (limit {self.ratio:g}): its root mean square is {scales.rms:.2g}.",
                    "What comes out depends on that one alone. Common causes: an index or id among the features, a date or an "
                    "amount that is not normalised.",
                )  # fmt: skip


__all__ = ["FeatureScale"]

KINDS = (
    Kind(
        "feature_scale", "One feature much larger than the others", group="Data", rank=245,
        meaning="A linear layer is given data of which one feature is many times as large as the others. It drowns them: outputs "
        "depend on it alone, and a learning rate that is right for its weights is far too small for theirs.",
        formula="size = rms of a feature over the samples of a batch, at a linear layer whose input has no gradient\n\n"
        "alert if max(size) / median(size, of those above 0) > {FeatureScale.ratio}",
        advice=("Normalise the features, each by its mean and standard deviation over the training data",
            "Leave out an index or id, or give it to an nn.Embedding", "Put an nn.BatchNorm1d before the layer"),
        causes={"representation_collapse": always, "saturated": downstream, "dead": downstream},
    ),
)  # fmt: skip

RULES = (FeatureScale(),)
