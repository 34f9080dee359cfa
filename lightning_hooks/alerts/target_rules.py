"""Rules over what losses between numbers, such as ``mse_loss``, compare."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import FeatureReport


@dataclass(frozen=True, slots=True, eq=False)
class PairedTargets(Rule):
    """A loss of outputs of shape ``(n, 1)`` and targets of shape ``(n,)``: both are expanded, and every output meets every target.

    What is compared in pairs on purpose has as many dimensions on both sides, or its pairs are not reduced by the loss itself.
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
                    "with every target, and the best output is their mean. Common cause: outputs of shape (n, 1), targets of (n,).",
                    advice=("Give both the same shape: output.squeeze(-1), or target.unsqueeze(-1)",),
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
                    "bit, while the samples of a batch differ: the target does not depend on the input. Common causes: noise that "
                    "is drawn once, a __getitem__ that ignores its index, a target that is overwritten.",
                    advice=(
                        "Check the targets of a batch",
                        "Where all samples are to become one template, mute this with rules=['-constant']",
                    ),
                )  # fmt: skip
