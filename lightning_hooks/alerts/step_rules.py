"""Optimizer steps: with gradients that are not zeroed, with those of too few batches, and skipped ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Kind
from lightning_hooks.reports.windows import ClipReport


@dataclass(frozen=True, slots=True, eq=False)
class NotZeroed(Rule):
    """Gradients that are never zeroed, and so add up from step to step.

    Attributes:
        threshold: Steps of the epoch with gradients that were not zeroed.
    """

    kind: ClassVar[str] = "not_zeroed"

    threshold: int = 2

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer that steps with the gradients of earlier steps."""
        for site, events in report.events.items():
            if events.unzeroed_steps >= self.threshold:
                yield self.alert(
                    report, site, events.unzeroed_steps, self.threshold, "warning",
                    f"at {events.unzeroed_steps} steps (limit {self.threshold}) its gradients had not been zeroed since the step "
                    "before: each step follows the sum of all gradients so far.",
                    "Common causes: a manual loop without optimizer.zero_grad(), or an optimizer_zero_grad override that does "
                    "nothing.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Discarded(Rule):
    """Batches whose gradients are zeroed before a step uses them: an accumulation that keeps only the last of them.

    Where there are several optimizers, as in a GAN, one throws away what the loss of the other leaves behind: such a training is
    not judged. Several backward passes of one batch do not count.

    Attributes:
        share: Share of the batches, in [0, 1].
        min_batches: Fewer batches than this are never an alert.
    """

    kind: ClassVar[str] = "not_zeroed"
    shares: ClassVar[tuple[str, ...]] = ("share",)

    share: float = 0.4
    min_batches: int = 5

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert if the only optimizer loses that many batches."""
        for site, events in report.events.items() if len(report.events) == 1 else ():
            lost, batches = events.discarded_batches, events.discarded_batches + report.optimizers[site].steps
            if lost >= self.min_batches and lost >= self.share * batches:
                yield self.alert(
                    report, site, lost / batches, self.share, "warning",
                    f"the gradients of {lost} of {batches} batches ({percent(lost / batches)}, limit {percent(self.share)}) "
                    "were zeroed before the next batch, without a step: nothing was learned from these batches.",
                    "Common cause: zero_grad() before each backward of an accumulation.",
                    advice=("Call optimizer.zero_grad() only after optimizer.step()",),
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StepsSkipped(Rule):
    """Optimizer steps that a loss scaler skipped because gradients overflowed.

    Attributes:
        threshold: Share of steps, in [0, 1]. A few at the start, while the scale settles, are how it works.
        min_skipped: Fewer skipped steps than this are never an alert.
    """

    kind: ClassVar[str] = "steps_skipped"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.1
    min_skipped: int = 5

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer that lost a sensible share of its steps."""
        for site, stats in report.optimizers.items():
            attempted = stats.steps + stats.skipped_steps
            share = stats.skipped_steps / attempted if attempted else 0.0
            if stats.skipped_steps >= self.min_skipped and share > self.threshold:
                yield self.alert(
                    report, site, share, self.threshold, "warning",
                    f"{stats.skipped_steps} of {attempted} optimizer steps ({percent(share)}, limit {percent(self.threshold)}) "
                    "were skipped because gradients overflowed in half precision: the model did not learn from these batches.",
                )  # fmt: skip


__all__ = ["Discarded", "NotZeroed", "StepsSkipped"]

KINDS = (
    Kind(
        name="not_zeroed",
        title="Gradients that are cleared too late or too early",
        group="Updates",
        meaning=(
            "Gradients were not set to zero between two steps, so that each step follows the sum of all gradients so far; or "
            "they were set to zero before each batch of an accumulation, so that all but the last are thrown away."
        ),
        formula=(
            "alert if gradients were not zeroed before {NotZeroed.threshold} or more steps of the epoch\n"
            "or if those of at least {Discarded.share} of the batches, and {Discarded.min_batches}, were zeroed without a step,\n"
            "      under manual optimisation with one optimizer"
        ),
        severities="warning",
        advice=("Call zero_grad() before manual_backward()",),
        rank=610,
    ),
    Kind(
        name="steps_skipped",
        title="Skipped optimizer steps",
        group="Updates",
        meaning=(
            "The loss scaler of 16-bit precision skipped many optimizer steps because gradients overflowed. The model learns "
            "from fewer batches than it gets."
        ),
        formula="alert if skipped steps / steps > {StepsSkipped.threshold} and skipped steps >= {StepsSkipped.min_skipped}",
        severities="warning",
        advice=("Try precision='bf16-mixed' or a lower learning rate", "Find the layer with the largest outputs"),
        rank=1320,
        measures="share",
    ),
)

RULES = (NotZeroed(), Discarded(), StepsSkipped())
