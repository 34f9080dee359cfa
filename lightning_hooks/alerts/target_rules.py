"""Rules over what losses with numbers for targets, such as ``mse_loss``, compare."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import FeatureReport
from lightning_hooks.statistics.targets import BINARY_CROSS_ENTROPY, BOUNDS, KL_DIVERGENCE


@dataclass(frozen=True, slots=True, eq=False)
class PairedTargets(Rule):
    """A loss of outputs of shape ``(n, 1)`` and targets of shape ``(n,)``: both are expanded, and every output meets every target.

    What is compared in pairs on purpose is not reduced by the loss itself, as in quantile regression.
    """

    kind: ClassVar[str] = "output_range"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per loss that has compared pairs."""
        for site, stats in report.targets.items():
            if stats.paired:
                yield self.alert(
                    report, site, stats.pairs, max(stats.inputs, stats.targets), "warning",
                    f"its input of {stats.inputs} numbers and its target of {stats.targets} have different shapes, and both are "
                    f"expanded to {stats.pairs} pairs, in {stats.paired} of {stats.calls} sampled calls: every output is compared "
                    "with every target, and the best output is their mean.",
                    "Common cause: outputs of shape (n, 1), targets of (n,).",
                    advice=("Give both the same shape: output.squeeze(-1), or target.unsqueeze(-1)",),
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class UnreachableTargets(Rule):
    """Targets that the function before the loss cannot put out: a sigmoid for prices, a tanh for scores up to 10.

    A binary cross entropy has no lowest value for targets below 0 or above 1, and ``kl_div`` none where its input is above 0, as no
    logarithm of a probability is.

    Attributes:
        share: Share of the targets outside of its values, above which it counts; of ``kl_div`` that of its input above 0.
        min_targets: Fewer numbers are not judged.
    """

    kind: ClassVar[str] = "output_range"
    shares: ClassVar[tuple[str, ...]] = ("share",)

    share: float = 0.05
    min_targets: int = 64

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per loss with such targets."""
        for site, stats in report.targets.items():
            if stats.bounded < self.min_targets or stats.outside <= self.share * stats.bounded:
                continue
            share = stats.outside / stats.bounded
            if stats.bound == KL_DIVERGENCE:
                yield self._of_divergence(report, site, share)
                continue
            low, high = BOUNDS[stats.bound]
            values = "below 0" if high == math.inf else f"outside of {low:g} to {high:g}"
            measured = f"{percent(share)} of its targets are {values} (limit {percent(self.share)}; {stats.bounded} were seen)"
            if stats.bound == BINARY_CROSS_ENTROPY:
                message = f"{measured}: it expects probabilities."
                diagnosis = (
                    "Outside of them it has no lowest value and falls without end. Common causes: labels of -1 and 1, class "
                    "numbers, pictures that are standardised."
                )
                advice: tuple[str, ...] = ("Pass targets from 0 to 1, such as (labels + 1) / 2",)
            else:
                message = f"{measured}, and a {stats.bound} comes right before it."
                diagnosis = "No weights reach these targets, and outputs are driven to its bound, where its gradient vanishes."
                advice = (f"Remove the {stats.bound} before the loss", "Scale the targets to the range of the outputs")
            yield self.alert(report, site, share, self.share, "warning", message, diagnosis, advice=advice)

    def _of_divergence(self, report: FeatureReport, site: str, share: float) -> Alert:
        return self.alert(
            report, site, share, self.share, "warning",
            f"{percent(share)} of the numbers of its input are above 0 (limit {percent(self.share)}), where logarithms of "
            "probabilities never are.",
            "It takes no logarithm itself: what it compares is no divergence and may be below 0. Common causes: softmax "
            "instead of log_softmax, logits.",
            advice=("Give kl_div the log_softmax of the logits", "Pass log_target=True if the target is a logarithm as well"),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SameTargets(Rule):
    """A loss all of whose targets are one and the same, sample by sample and batch by batch, though the samples differ.

    Targets of one or two dimensions do not count, nor those of fewer than 32 different numbers: labels of an adversary, centres.

    Attributes:
        min_calls: Fewer calls that were compared are not judged.
    """

    kind: ClassVar[str] = "constant"

    min_calls: int = 3

    def __call__(self, report: FeatureReport, history: Sequence[FeatureReport] = ()) -> Iterator[Alert]:
        """Yield an alert per loss, where the samples of the first batch of each window differ."""
        if any(window.same_samples is not False for window in (*history, report)):
            return
        for site, stats in report.targets.items():
            if self.min_calls <= stats.compared == stats.constant:
                yield self.alert(
                    report, site, 0.0, 0.0, "warning",
                    f"its target is the same for all samples, and the same again in each of {stats.compared} sampled calls, to the "
                    "bit, while the samples of a batch differ: the target does not depend on the input.",
                    "Common causes: noise that is drawn once, a __getitem__ that ignores its index, a target that is overwritten.",
                    advice=(
                        "Check the targets of a batch",
                        "Where all samples are to become one template, mute this with rules=['-constant']",
                    ),
                )  # fmt: skip
