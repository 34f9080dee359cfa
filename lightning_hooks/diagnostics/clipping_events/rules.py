"""Optimizer steps: norms that leave those before, clipping that always acts or never, gradients not zeroed, skipped steps."""

from __future__ import annotations

from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent, where
from lightning_hooks.diagnostics.causes import code, rates, steps, weights, wiring
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.diagnostics.reports import is_scale_free


class Diverging(Rule, kind="exploding"):
    """Gradients that are much larger than in the first steps of training.

    Attributes:
        threshold: Norm over the largest norm of the first steps.
    """

    threshold: float = 1e3

    def __call__(self, report: ClipReport) -> Alerts:
        for site, events in where(report.events, lambda events: events.growth > self.threshold):
            yield self.finding(
                report, site, events.growth, self.threshold,
                f"at training batch {events.growth_batch} of the epoch the gradient norm was {events.growth_norm:.3g}: "
                f"{events.growth:.1e} times the largest of the first steps of training (limit {self.threshold:.0e}).",
                batch=events.growth_batch,
            )  # fmt: skip


class Spike(Rule, kind="spike"):
    """A step whose gradient is much larger than any before it.

    OLMo-core's ``SkipStepOptimizer`` calls a step an outlier if its norm is more than 6 standard deviations above the mean of the
    128 steps before, after the first 64. Small healthy trainings have such steps too, mostly when they have almost converged; so
    the step must also exceed all before it by ``ratio``.

    Attributes:
        ratio: Norm over the largest norm of all steps before.
    """

    sigmas: ClassVar[float] = 6.0  # standard deviations above the mean of the window
    ratio: float = 10.0
    min_steps: ClassVar[int] = 16  # steps there must have been before

    def __call__(self, report: ClipReport) -> Alerts:
        for site, events in where(
            report.events,
            lambda events: events.jump > self.ratio and events.jump_sigmas > self.sigmas and events.jump_before >= self.min_steps,
        ):
            yield self.finding(
                report, site, events.jump, self.ratio,
                f"at training batch {events.jump_batch} of the epoch the gradient norm was {events.jump_norm:.3g}: "
                f"{events.jump:.3g} times the largest before (limit {self.ratio:.3g}) and {events.jump_sigmas:.3g} standard "
                f"deviations above the mean ({events.jump_mean:.3g}) of {events.jump_before} steps, mostly in "
                f"{events.jump_parameter}.",
                batch=events.jump_batch,
            )  # fmt: skip


class AlwaysClipped(Rule, kind="always_clipped", judges="epoch", shares=("threshold",)):
    """Clipping at nearly every step: it sets the step size instead of the learning rate.

    Some recipes do this on purpose, and it is harmless where the step does not depend on the size of the gradient, as Adam's. It is
    a warning where it does and little of the norm is left, and where the norm before clipping has grown since the first two epochs
    (it starts small where residual branches or heads start at zero).

    Attributes:
        threshold: Share of clipped steps, in [0, 1].
        growth: Norm before clipping over the larger one of training's first two epochs, above which it has grown.
    """

    threshold: float = 0.95
    min_steps: ClassVar[int] = 20  # an epoch with fewer steps is not judged
    left: ClassVar[float] = 0.1  # share of the norm that clipping leaves on average, below which hardly anything is left
    growth: ClassVar[float] = 10.0

    def __call__(self, report: ClipReport) -> Alerts:
        for site, stats in where(report.optimizers, lambda stats: stats.steps >= self.min_steps and stats.rate > self.threshold):
            top, first = next((name for name, _ in stats.top_parameters), "?"), report.first_norm(site)
            grown = stats.norm_before > self.growth * first
            little = stats.coefficient < self.left and not is_scale_free(site)
            growth = f", and the norm before clipping has grown from {first:.3g}" * grown
            yield self.finding(
                report, site, stats.rate, self.threshold,
                f"{percent(stats.rate)} of its steps were clipped (limit {percent(self.threshold)}), on average to "
                f"{percent(stats.coefficient)} of their norm, mostly because of {top}: the clipping threshold, not the "
                f"learning rate, sets the step size{growth}.",
                conclusive=grown or little,
                advice=(
                    f"Raise the clipping threshold above the usual norm ({stats.norm_before:.3g}), or lower the learning rate",
                ),
            )  # fmt: skip


class ClipIneffective(Rule, kind="clip_ineffective", judges="epoch"):
    """Configured clipping that did not hold."""

    tolerance: ClassVar[float] = 1e-3  # relative excess of the norm after clipping over the configured limit that is still rounding

    def __call__(self, report: ClipReport) -> Alerts:
        for site, stats in report.optimizers.items():
            if stats.limit is not None and stats.norm_after_max > stats.limit * (1 + self.tolerance):
                yield self.finding(
                    report, site, stats.norm_after_max, stats.limit,
                    f"a step was taken with a gradient norm of {stats.norm_after_max:.3g}, although clipping is configured with a "
                    f"limit of {stats.limit:.3g}.",
                )  # fmt: skip


class WastedClip(Rule, kind="clip_ineffective"):
    """Gradients that are changed after the step and zeroed before the next: clipping at the wrong place."""

    threshold: ClassVar[int] = 2  # steps of the epoch

    def __call__(self, report: ClipReport) -> Alerts:
        for site, events in where(report.events, lambda events: events.wasted_clips >= self.threshold):
            yield self.finding(
                report, site, events.wasted_clips, self.threshold,
                f"its gradients were changed {events.wasted_clips} times (limit {self.threshold}) between a step and the next "
                "zero_grad: the change had no effect.",
                advice=("Use Trainer(gradient_clip_val=…), or clip in configure_gradient_clipping",),
            )  # fmt: skip


class NotZeroed(Rule, kind="not_zeroed"):
    """Gradients that are never zeroed, and so add up from step to step."""

    threshold: ClassVar[int] = 2  # steps of the epoch with gradients that were not zeroed

    def __call__(self, report: ClipReport) -> Alerts:
        for site, events in where(report.events, lambda events: events.unzeroed_steps >= self.threshold):
            yield self.finding(
                report, site, events.unzeroed_steps, self.threshold,
                f"at {events.unzeroed_steps} steps (limit {self.threshold}) its gradients had not been zeroed since the step "
                "before: each step follows the sum of all gradients so far.",
            )  # fmt: skip


class Discarded(Rule, kind="not_zeroed"):
    """Batches whose gradients are zeroed before a step uses them: all of them, or all but the last ones of an accumulation.

    Where there are several optimizers, as in a GAN, one throws away what the loss of the other leaves behind: there only steps
    that find nothing but zeros count. Several backward passes of one batch do not count.
    """

    share: ClassVar[float] = 0.4  # share of the batches, in [0, 1]
    min_batches: ClassVar[int] = 5  # fewer batches than this are never an alert
    most: ClassVar[float] = 1e19  # a norm whose square float32 does not hold: clipping divides by infinity, and leaves zeros

    def __call__(self, report: ClipReport) -> Alerts:
        for site, events in report.events.items():
            stats = report.optimizers[site]
            zeroed = stats.norm_after_max == 0 < stats.norm_before < self.most
            lost, batches = events.discarded_batches + zeroed * stats.steps, events.discarded_batches + stats.steps
            if lost >= max((self.min_batches, NotZeroed.threshold)[zeroed], self.share * batches) and (
                zeroed or len(report.events) == 1
            ):
                when = ("before the next batch, without a step", "between backward and the step")[zeroed]
                yield self.finding(
                    report, site, lost / batches, self.share,
                    f"the gradients of {lost} of {batches} batches ({percent(lost / batches)}, limit {percent(self.share)}) "
                    f"were zeroed {when}: nothing was learned from these batches.",
                )  # fmt: skip


class StepsSkipped(Rule, kind="steps_skipped", shares=("threshold",)):
    """Optimizer steps that a loss scaler skipped because gradients overflowed.

    Attributes:
        threshold: Share of steps, in [0, 1]. A few at the start, while the scale settles, are how it works.
    """

    threshold: float = 0.1
    min_skipped: ClassVar[int] = 5  # fewer skipped steps than this are never an alert

    def __call__(self, report: ClipReport) -> Alerts:
        for site, stats in report.optimizers.items():
            attempted = stats.steps + stats.skipped_steps
            share = stats.skipped_steps / max(attempted, 1)
            if stats.skipped_steps >= self.min_skipped and share > self.threshold:
                yield self.finding(
                    report, site, share, self.threshold,
                    f"{stats.skipped_steps} of {attempted} optimizer steps ({percent(share)}, limit {percent(self.threshold)}) "
                    "were skipped because gradients overflowed in half precision: the model did not learn from these batches.",
                )  # fmt: skip


__all__ = ["AlwaysClipped", "ClipIneffective", "Discarded", "Diverging", "NotZeroed", "Spike", "StepsSkipped", "WastedClip"]

KINDS = (
    Kind(
        "spike", "A gradient much larger than any before", group="Backward", states="symptom", about="batch",
        causes=(code.bad_batch, *steps.LARGE_STEP, weights.stretching_recurrence),
        meaning="The gradient of one step is far larger than that of all steps before.",
        formula="alert if norm > {Spike.ratio} * the largest norm before\n"
        "      and norm > mean + {Spike.sigmas} * standard deviation of the 128 steps before, after at least {Spike.min_steps} "
        "steps",
        advice=("Check the data of this batch",),
    ),
    Kind(
        "always_clipped", "Clipping at nearly every step", group="Clipping", states="symptom", measures="share",
        limit=AlwaysClipped().threshold,
        causes=(wiring.clipped_while_scaled, steps.clip_too_low, *steps.STEP_SIZE),
        meaning="Clipping reduces nearly every step. The clipping threshold, not the learning rate, sets the step size.",
        formula="rate = clipped steps / steps\n\n"
        "alert if rate > {AlwaysClipped.threshold}, in an epoch of at least {AlwaysClipped.min_steps} steps\n"
        "warning, not info, if the norm before clipping > {AlwaysClipped.growth} * the larger one of the first two epochs,\n"
        "      or norm after / norm before < {AlwaysClipped.left} and the optimizer depends on the gradient's scale (not Adam)",
        inconclusive="where it does no harm",
        advice=("Raise the clipping threshold above the usual norm, or lower the learning rate",),
    ),
    Kind(
        "clip_ineffective", "Clipping without effect", group="Clipping", states="fact",
        causes=(
            code.fact("clips_in_vain", "gradients are clipped where it has no effect", "replace", "the call that clips",
                "gradient_clip_val", "Trainer(gradient_clip_val=1.0)"),
        ),
        meaning="A step was taken with a larger norm than the configured limit, or gradients were clipped when the step was "
        "already taken.",
        formula="alert if norm after clipping > configured limit * (1 + {ClipIneffective.tolerance})\n"
        "      or gradients change between a step and the next zero_grad, {WastedClip.threshold} times or more in an epoch",
        advice=("Call self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm) there",),
    ),
    Kind(
        "not_zeroed", "Gradients that are cleared too late or too early", group="Updates", states="fact",
        causes=(code.NEVER_ZEROED,),
        meaning="Gradients were not set to zero between two steps, so that each step follows the sum of all gradients so far; or "
        "they were set to zero before the step, or before each batch of an accumulation, and are thrown away.",
        formula="alert if gradients were not zeroed before {NotZeroed.threshold} or more steps of the epoch\n"
        "or if those of at least {Discarded.share} of the batches, and {Discarded.min_batches}, were zeroed without a step,\n"
        "      under manual optimisation with one optimizer\n"
        "or if all were above 0 after backward, and are 0 at each step",
        advice=("Call optimizer.zero_grad() after each step, and at no other time",),
    ),
    Kind(
        "steps_skipped", "Skipped optimizer steps", group="Updates", states="fact", measures="share",
        causes=(weights.initial_scale, code.half_overflow, rates.rate_too_high),
        meaning="The loss scaler of 16-bit precision skipped many optimizer steps because gradients overflowed. The model learns "
        "from fewer batches than it gets.",
        formula="alert if skipped steps / steps > {StepsSkipped.threshold} and skipped steps >= {StepsSkipped.min_skipped}",
        advice=("Try precision='bf16-mixed' or a lower learning rate", "Find the layer with the largest outputs"),
    ),
)  # fmt: skip
