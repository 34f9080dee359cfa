"""Gradient norms of optimizer steps that leave those before: over the training, or at one step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Rule
from lightning_hooks.diagnostics.causes.code import bad_batch
from lightning_hooks.diagnostics.causes.steps import LARGE_STEP
from lightning_hooks.diagnostics.causes.weights import stretching_recurrence
from lightning_hooks.diagnostics.clipping_events.report import ClipReport


@dataclass(frozen=True, slots=True, eq=False)
class Diverging(Rule):
    """Gradients that are much larger than in the first steps of training.

    Attributes:
        threshold: Norm over the largest norm of the first steps.
    """

    kind: ClassVar[str] = "exploding"

    threshold: float = 1e3

    def __call__(self, report: ClipReport) -> Iterator[Alert]:
        """Yield an alert per optimizer whose gradients have grown so."""
        for site, events in report.events.items():
            if events.growth > self.threshold:
                yield self.alert(
                    report, site, events.growth, self.threshold, "critical",
                    f"at training batch {events.growth_batch} of the epoch the gradient norm was {events.growth_norm:.3g}: "
                    f"{events.growth:.1e} times the largest of the first steps of training (limit {self.threshold:.0e}).",
                    batch=events.growth_batch,
                )  # fmt: skip


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
    min_steps: ClassVar[int] = 16

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
                    batch=events.jump_batch,
                )  # fmt: skip


__all__ = ["Diverging", "Spike"]

KINDS = (
    Kind(
        "spike", "A gradient much larger than any before", group="Backward", states="symptom", about="batch",
        causes=(bad_batch, *LARGE_STEP, stretching_recurrence),
        meaning="The gradient of one step is far larger than that of all steps before.",
        formula="alert if norm > {Spike.ratio} * the largest norm before\n"
        "      and norm > mean + {Spike.sigmas} * standard deviation of the 128 steps before, after at least {Spike.min_steps} "
        "steps",
        advice=("Check the data of this batch",),
    ),
)  # fmt: skip

RULES = (Diverging(), Spike())
