"""Rules over what ranks have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import GradientFlowReport
from lightning_hooks.statistics.replicas import TOLERANCE


@dataclass(frozen=True, slots=True, eq=False)
class RanksDiffer(Rule):
    """Parameters that differ between ranks under DDP, or whose gradients do after the reduction.

    "Parameters are never broadcast between processes. The module performs an all-reduce step on gradients and assumes that they
    will be modified by the optimizer in all processes in the same way" (PyTorch on DistributedDataParallel): where that does not
    hold, nothing brings ranks together again. The threshold leaves room for rounding, by some 1e-7 for float32.

    Attributes:
        threshold: Relative difference.
    """

    kind: ClassVar[str] = "ranks_differ"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = TOLERANCE

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first parameter that differs."""
        found = report.ranks_differ
        if found is None or found.difference <= self.threshold:
            return
        number = found.gradients if found.what == "gradients" else found.weights
        share = f"{percent(found.difference)} (limit {percent(self.threshold)}), at {number} of {found.compared} parameters"
        if found.what == "gradients":
            message = f"its gradient still differs between ranks after the reduction, by {share}: each trains a model of its own."
            causes = (
                "Common causes: loss.backward() in manual optimisation, a model called past DDP, parameters unfrozen in training, "
                "no_sync at the last batch of an accumulation."
            )
        else:
            message = f"its weights differ between ranks, by about {share}; gradients agree, as far as they were measured."
            causes = (
                "Common causes: weights written or loaded on one rank only, clipping on one rank only, optimizers whose settings "
                "differ."
            )
        yield self.alert(report, found.parameter, found.difference, self.threshold, "critical", message, causes)
