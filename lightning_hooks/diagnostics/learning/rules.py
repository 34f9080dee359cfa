"""Steps that are too long or too short, and parts that bring nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Rule, percent
from lightning_hooks.diagnostics.causes.data import large_inputs, large_targets
from lightning_hooks.diagnostics.causes.rates import rate_too_low
from lightning_hooks.diagnostics.causes.steps import STEP_SIZE
from lightning_hooks.diagnostics.causes.weights import initial_scale, large_start, stretching_recurrence, stretching_start
from lightning_hooks.diagnostics.loss.rules import SITE
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.diagnostics.training_state import weight_ratios

ENOUGH = 8  # losses of a window whose mean is compared with the first one: fewer may differ by chance
NO_BETTER = 0.95  # the loss over the first one above which it is as bad
MOST_LONGER = 100.0  # a ratio any nearer to 1 is rounding


def factor_to_best(step_ratio: float) -> float:
    """The factor between the best length of a step and its own, if the loss is quadratic along it: 1 / (2 (1 - ratio))."""
    return min(1.0 / (2.0 * (1.0 - step_ratio)), MOST_LONGER) if step_ratio < 1.0 else MOST_LONGER


@dataclass(frozen=True, slots=True, eq=False)
class StepTooLong(Rule):
    """Steps that end about as high as they began, or higher; or that nearly replace weights, and ruin the loss.

    It is a warning where the loss is ruined. Of 60 trainings of small models, at a good rate and up to 1000 times it, the mean
    loss of the first epoch was at most 1.02 times the first one in those that learned, and above twice that in nearly all others.

    Attributes:
        threshold: Median step ratio below which it counts.
        min_reruns: Measured steps that there must be.
        ruined: Mean loss of a window, or of its end, over the first loss, above which steps have ruined it, until it is better than
            that.
        size: Where no step ratio says so: the largest share of a weight that a step changed, the median of all weights, from which
            on it is the steps that did.
    """

    kind: ClassVar[str] = "step_too_long"
    shares: ClassVar[tuple[str, ...]] = ("size",)

    threshold: float = 0.1
    min_reruns: ClassVar[int] = 4
    ruined: ClassVar[float] = 1.5
    size: float = 0.1

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert if steps are too long."""
        learning, times, ratio = report.learning, self._ruin(report), math.inf
        if learning is not None and learning.step_ratio is not None and learning.reruns >= self.min_reruns:
            ratio = learning.step_ratio
        lower = 1.0 / factor_to_best(ratio) if ratio < self.threshold else 10.0
        advice = (f"Divide the learning rate by {lower:.2g}, or by more", "Warm the learning rate up", "Clip gradients")
        if ratio < self.threshold:
            ruin = f", and the loss has been {times:.3g} times that before the first step" if times > self.ruined else ""
            yield self.alert(
                report, SITE, ratio, self.threshold, "warning" if ruin else "info",
                f"steps gain {percent(ratio)} of what their gradients predict on their own batch (limit {percent(self.threshold)}; "
                f"the best length gains 50%){': they raise its loss' * (ratio < 0)}{ruin}.", advice=advice,
            )  # fmt: skip
        elif times > self.ruined and (size := max(map(_largest_steps, report.windows))) >= self.size:
            yield self.alert(
                report, SITE, times, self.ruined, "warning",
                f"the loss has been {times:.3g} times that before the first step (limit {self.ruined:g} times), and a step changed "
                f"weights by up to {percent(size)} of their size (median of all weights; limit {percent(self.size)}).",
                advice=advice,
            )  # fmt: skip

    def _ruin(self, report: GradientFlowReport) -> float:
        """The most that the loss has been of the first one, as long as it is no better than that."""
        now, lost = _risen(report), report.loss is not None and report.loss.nonfinite_steps > 0
        return max(map(_risen, report.windows)) if lost or now > NO_BETTER else now


def _risen(report: GradientFlowReport) -> float:
    """The loss of a window, or of its end, over the first one; 0 where that is not known."""
    loss, first = report.loss, report.first.loss
    if loss is None or first is None or loss.count < ENOUGH or not (loss.optimized and 0 < first.began < math.inf):
        return 0.0
    level = max(loss.mean, loss.latest) / first.began
    return level if level < math.inf else 0.0


def _largest_steps(report: GradientFlowReport) -> float:
    """The median over the weights of the largest share of it that a measured step has changed."""
    known = [report.parameters[name].update_ratio_max for name in weight_ratios(report) if not report.setups[name].starts_at_zero]
    return statistics.median([ratio or 0.0 for ratio in known] or [0.0])


@dataclass(frozen=True, slots=True, eq=False)
class StepTooShort(Rule):
    """Steps that gain exactly what their gradients predict, always in the same direction, and next to nothing.

    Healthy trainings reach each of the three alone.

    Attributes:
        threshold: Median step ratio above which it counts.
        coherence: Cosine of the gradients of successive measured steps above which it counts.
        gain: Gain of a step, as a share of the loss, below which it counts.
        min_reruns: Measured steps that there must be: more than those of a warm-up's start.
    """

    kind: ClassVar[str] = "step_too_short"
    shares: ClassVar[tuple[str, ...]] = ("gain",)

    threshold: float = 0.99
    coherence: float = 0.9
    gain: float = 5e-4
    min_reruns: ClassVar[int] = 5

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert if steps are too short."""
        learning, loss = report.learning, report.loss
        if learning is None or loss is None or learning.reruns < self.min_reruns:
            return
        ratio, gain, coherence = learning.step_ratio, learning.gain, learning.coherence
        if ratio is None or gain is None or coherence is None or not 0 < gain < self.gain * abs(loss.mean):
            return
        if ratio > self.threshold and coherence > self.coherence:
            yield self.alert(
                report, SITE, ratio, self.threshold, "info",
                f"steps gain all that their gradients predict ({percent(ratio)}; limit {percent(self.threshold)}), in the same "
                f"direction (cosine {coherence:.2g}), and {percent(gain / abs(loss.mean))} of the loss each: longer steps would "
                "gain more.",
                advice=(f"Multiply the learning rate by up to {factor_to_best(ratio):.2g}, in steps of ten",),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PartNotLearning(Rule):
    """A module with many parameters from which next to nothing of the loss's fall comes.

    Attributes:
        threshold: Share of the predicted gain, with twice its standard error, below which it counts.
        size: Share of the trained parameters that the module must hold.
        min_steps: Measured steps that there must be.
    """

    kind: ClassVar[str] = "part_not_learning"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "size")

    threshold: float = 1e-4
    size: float = 0.05
    min_steps: ClassVar[int] = 4

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert for each outermost module that brings nothing."""
        learning = report.learning
        if learning is None or learning.steps < self.min_steps or not learning.predicted_gain:
            return
        found: list[str] = []  # outermost ones
        total = learning.predicted_gain * learning.steps
        elements = {name: report.setups[name].elements for name in learning.parameters if name in report.setups}
        for module, share in learning.modules.items():
            inside = [name for name in elements if name.startswith(f"{module}.")]
            size = sum(elements[name] for name in inside) / max(sum(elements.values()), 1)
            error = math.hypot(*(learning.parameters[name].error for name in inside)) / total
            within = any(module.startswith(f"{one}.") for one in found)
            still = all(learning.parameters[name].gain == 0 for name in inside)  # other kinds say so
            if size < self.size or abs(share) + 2 * error > self.threshold or within or still:
                continue
            found.append(module)
            yield self.alert(
                report, module, share, self.threshold, "info",
                f"it holds {percent(size)} of the parameters, and {percent(share)} of the predicted fall of the loss "
                f"comes from it (limit {percent(self.threshold)}).",
            )  # fmt: skip


__all__ = ["PartNotLearning", "StepTooLong", "StepTooShort"]

KINDS = (
    Kind(
        "step_too_long", "Steps that are too long", group="Updates", states="symptom", measures="number",
        causes=(
            stretching_start, initial_scale, large_start, *STEP_SIZE, large_inputs, stretching_recurrence, large_targets,
        ),
        meaning="The batch of a step was run again after the update: the step gained next to nothing of what its gradient "
        "predicts, or raised the loss. Or steps nearly replace weights, and the loss is far above what it was before the first.",
        formula="ratio = median over the last measured steps of (loss before - loss after) / predicted gain\n\n"
        "alert if ratio < {StepTooLong.threshold}, with at least {StepTooLong.min_reruns} measured steps\n"
        "      or mean loss > {StepTooLong.ruined} * the first loss, and is still no better than that,\n"
        "         and median over the weights of the largest update_ratio >= {StepTooLong.size}",
        severities="info; warning where the loss has been above {StepTooLong.ruined} times the first one, and is no better now",
         # steps were well before the leap
        advice=("Lower the learning rate", "Warm the learning rate up", "Clip gradients"),
    ),
    Kind(
        "step_too_short", "Steps that are too short", group="Updates", states="symptom", measures="number",
        causes=(rate_too_low,),
        meaning="Steps gain all that their gradients predict, point the same way, and each gains next to nothing of the loss.",
        formula="alert if ratio > {StepTooShort.threshold} and coherence > {StepTooShort.coherence}\n"
        "     and gain of a step < {StepTooShort.gain} * loss, with at least {StepTooShort.min_reruns} measured steps",
        severities="info",
        advice=("Raise the learning rate",),
    ),
    Kind(
        "part_not_learning", "Parts that do not learn", group="Updates", states="symptom", measures="share",
        meaning="A module holds many of the parameters, and next to nothing of the predicted fall of the loss comes from it.",
        formula="share = predicted gain of the module's parameters / that of all\n\n"
        "alert if |share| + 2 standard errors < {PartNotLearning.threshold}\n"
        "     in a module with at least {PartNotLearning.size} of the parameters",
        severities="info",
        advice=("Check the gradient flow before it", "Check its learning rate", "Add residual connections or normalisation"),
    ),
)  # fmt: skip

RULES = (StepTooLong(), StepTooShort(), PartNotLearning())
