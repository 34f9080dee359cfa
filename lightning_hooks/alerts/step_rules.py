"""Rules over what happened at single optimizer steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import ClipReport


@dataclass(frozen=True, slots=True, eq=False)
class Spike(Rule):
    """A step whose gradient is much larger than any before it.

    OLMo-core's ``SkipStepOptimizer`` calls a step an outlier if its norm is more than 6 standard deviations above the mean of the
    128 steps before, after the first 64. Small healthy trainings have such steps too, mostly when they have almost converged; so
    the step must also exceed all before it by ``ratio``.

    Attributes:
        sigmas: Standard deviations above the mean of the window.
        ratio: Norm over the largest norm of all steps before.
        min_steps: Steps there must have been before.
    """

    kind: ClassVar[str] = "spike"

    sigmas: float = 6.0
    ratio: float = 10.0
    min_steps: int = 16

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer with such a step."""
        for site, events in report.events.items():
            enough = events.jump_before >= self.min_steps and events.jump_sigmas > self.sigmas
            if enough and events.jump > self.ratio:
                yield self.alert(
                    report, site, events.jump, self.ratio, "warning",
                    f"at training batch {events.jump_batch} of the epoch the gradient norm was {events.jump_norm:.3g}: "
                    f"{events.jump:.3g} times the largest before (limit {self.ratio:.3g}) and {events.jump_sigmas:.3g} standard "
                    f"deviations above the mean ({events.jump_mean:.3g}) of {events.jump_before} steps, mostly in "
                    f"{events.jump_parameter}.",
                    "Common causes: a batch unlike the others (not normalised, corrupt), or a step just before that changed the "
                    "weights too much.",
                    batch=events.jump_batch,
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Diverging(Rule):
    """Gradients that are much larger than in the first steps of training.

    Attributes:
        threshold: Norm over the largest norm of the first steps.
    """

    kind: ClassVar[str] = "exploding"

    threshold: float = 1e3

    advice: ClassVar[tuple[str, ...]] = (
        "Try a lower learning rate or a warm-up",
        "Set gradient_clip_val=1.0 if nothing clips yet",
    )

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer whose gradients have grown so."""
        for site, events in report.events.items():
            if events.growth > self.threshold:
                yield self.alert(
                    report, site, events.growth, self.threshold, "critical",
                    f"at training batch {events.growth_batch} of the epoch the gradient norm was {events.growth_norm:.3g}: "
                    f"{events.growth:.1e} times the largest of the first steps of training (limit {self.threshold:.0e}).",
                    "Training diverges, and weights may become NaN. Common causes: a learning rate that is too large, or a "
                    "recurrent network without clipping.",
                    batch=events.growth_batch,
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class NonfiniteSteps(Rule):
    """Steps that were taken with a NaN or infinite gradient; every step is checked, so the batch is exact."""

    kind: ClassVar[str] = "nonfinite"
    urgent: ClassVar[bool] = True

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer that took such a step.

        Where only some gradients were finite, the backward pass fails between the last parameter that is not and those after it:
        the site is that parameter. Where none was, the loss or the forward pass failed: the site is the optimizer.
        """
        for site, events in report.events.items():
            if events.first_nonfinite_batch is None:
                continue
            where = f"at training batch {events.first_nonfinite_batch} of the epoch"
            if events.nonfinite_share < 1.0 and events.first_nonfinite_parameters:
                last = events.first_nonfinite_parameters[-1]
                yield self.alert(
                    report, last, events.nonfinite_share, 0.0, "critical",
                    f"{where} a step was taken with a gradient that is NaN or infinite up to this layer and finite after it: the "
                    "backward pass fails between this layer and the next.",
                    "Common cause: an operation with an infinite slope but a finite value (sqrt at 0, norm of zeros, power below "
                    "1, division).",
                    advice=("Add an eps inside it",),
                    batch=events.first_nonfinite_batch,
                )  # fmt: skip
            else:
                yield self.alert(
                    report, site, events.nonfinite_share, 0.0, "critical",
                    f"{where} a step was taken with gradients that were all NaN or infinite: the loss was already, or the forward "
                    "pass before it.",
                    "The weights are lost from this step on.",
                    advice=(
                        "Check that batch and the arguments of the loss (log of 0, division by 0)",
                        "Check the steps before for a learning rate that is too large",
                    ),
                    batch=events.first_nonfinite_batch,
                )  # fmt: skip


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
class WastedClip(Rule):
    """Gradients that are changed after the step and zeroed before the next: clipping at the wrong place.

    Attributes:
        threshold: Steps of the epoch.
    """

    kind: ClassVar[str] = "clip_ineffective"

    threshold: int = 2

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer whose gradients are changed in vain."""
        for site, events in report.events.items():
            if events.wasted_clips >= self.threshold:
                yield self.alert(
                    report, site, events.wasted_clips, self.threshold, "warning",
                    f"its gradients were changed {events.wasted_clips} times (limit {self.threshold}) between a step and the next "
                    "zero_grad: the change had no effect.",
                    "Common cause: clip_grad_norm_ is called in training_step, where the gradients are still those of the last "
                    "step.",
                    advice=("Use Trainer(gradient_clip_val=…), or clip in configure_gradient_clipping",),
                )  # fmt: skip
