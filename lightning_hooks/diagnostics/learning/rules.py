"""A loss that makes no progress, steps that are too long or too short, and parts that bring nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import takewhile
from typing import ClassVar

from lightning_hooks.declare.kinds import ALWAYS, Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent
from lightning_hooks.diagnostics.attention.rules import inverted_mask
from lightning_hooks.diagnostics.causes import code, data, rates, steps, weights, wiring
from lightning_hooks.diagnostics.loss.report import BLOCK, NO_LOSS
from lightning_hooks.diagnostics.loss.rules import SITE
from lightning_hooks.diagnostics.reports import GradientFlowReport, weight_ratios

FLAT = 0.005  # fall of the loss over that of the best constant answer, from one window to the next, above which it falls


class NoProgress(Rule, kind="no_progress", shares=("threshold", "over_constant")):
    """A loss that stands still at that of the best constant answer, or whose steps lower the loss of their own batches alone.

    The first is harm that is measured, and a warning where the loss of the last batches is as large as that of those before them,
    beyond what chance makes of so few, unless the learning rate still warms up or a long training has only begun: a language model
    stays at the frequencies of its tokens for a while. So is a loss that was there in all windows for half of the training so far,
    however few or unlike its batches are, and whatever else is added to it, and one that is far above it when half of the planned
    steps are taken, or no better when three quarters are and it hardly falls. The other is an info.

    Attributes:
        threshold: Fall of the loss on new batches over the sum of the gains, below which it counts.
        over_constant: Loss over that of the best constant answer from which on the model is no better than that.
        still: Share by which a loss that stands still may change, with its error, and be above that of the best constant answer:
            farther above it is on its way, in the first half of the planned steps.
        stays: Share of the steps so far, in several windows, for which the loss must have been there, still or not.
        behind: Median of the last losses over that of the best constant answer, above which a model that is half trained is
            worse than that.
    """

    threshold: float = 0.02
    fall: ClassVar[float] = 0.1  # share of the loss at the start that its lowest level may lie below it
    gain: ClassVar[float] = 1e-3  # gain of a step, as a share of the loss, from which on steps count as gaining
    over_constant: float = 0.98
    still: ClassVar[float] = 0.03
    min_steps: ClassVar[int] = 40  # optimizer steps that there must be
    begun: ClassVar[float] = 0.1  # share of the planned steps before which it is an info
    stays: ClassVar[float] = 0.5
    long: ClassVar[int] = data.FEW_STEPS  # the fewest steps for that
    behind: ClassVar[float] = 1.5
    late: ClassVar[float] = 0.75  # share of the planned steps from which on to be no better than that answer is enough

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss, constant = report.minimized, report.over_constant
        if report.step < self.min_steps or not (loss.optimized or len(report.optimizers) == 1):  # a game of two may stay there
            return
        if math.isnan(constant):
            yield from self._gains_alone(report)
            return
        latest = constant * loss.latest / loss.mean if loss.recent and loss.mean > 0 else constant
        constant = min(constant, latest)  # it may have fallen within the window
        change, error = loss.change(self.min_steps) or (math.inf, 0.0)
        still = abs(change) + error < self.still and change >= -error  # it does not fall, however slowly
        falls = change < -2 * error and report.loss_sign != 0  # with nothing added to it
        steps, level = self._at_constant(report.windows)
        behind, planned = _over_constant(report), report.planned_steps or math.inf
        limit = f"of that of the best constant answer (limit {self.over_constant:g})"
        begun = not _warms_up(report) and report.step >= self.begun * (report.planned_steps or 0)
        half = report.step >= planned / 2
        if still and self.over_constant < constant < (1 + self.still, math.inf)[half]:
            yield self.finding(
                report, SITE, constant, self.over_constant,
                f"the loss is {constant:.3g} {limit} and stands still.",
                conclusive=begun,
            )  # fmt: skip
        elif steps >= max(self.long, self.stays * report.step) and self.over_constant < level < 1 + self.still and not falls:
            yield self.finding(
                report, SITE, level, self.over_constant,
                f"the loss is {level:.3g} {limit}, and has been for {steps} of {report.step} steps.",
                conclusive=begun,
            )  # fmt: skip
        elif half and behind and behind > (least := self.over_constant if self._has_ended(report) else self.behind):
            yield self.finding(
                report, SITE, behind, least,
                f"the loss is {behind:.3g} times that of the best constant answer (limit {least:g}) after "
                f"{report.step} of {report.planned_steps} steps.",
            )  # fmt: skip

    def _gains_alone(self, report: GradientFlowReport) -> Alerts:
        """An info where steps lower the loss of their own batches, and that of new ones stands still from the start."""
        loss, progress, gain = report.minimized, report.learned.progress, report.learned.gain or 0.0
        still = math.isfinite(loss.lowest) and loss.start > 0 and loss.lowest > (1 - self.fall) * loss.start
        if progress is not None and progress < self.threshold and still and gain > self.gain * loss.mean:
            yield self.finding(
                report, SITE, progress, self.threshold,
                f"a step lowers its own batch's loss by {percent(gain / loss.mean)}, and new batches get "
                f"{percent(max(progress, 0.0))} of that (limit {percent(self.threshold)}).",
                conclusive=False,
            )  # fmt: skip

    def _has_ended(self, report: GradientFlowReport) -> bool:
        """Whether most of the planned steps are taken, and the loss has hardly fallen in the last quarter of its last values."""
        known, late = report.minimized.finite, max(self.long, self.late * (report.planned_steps or math.inf))
        before, last = known[-(len(known) // 2) : -(len(known) // 4)], known[-(len(known) // 4) :]
        return report.step >= late and statistics.fmean(last) > (1 - self.still) * statistics.fmean(before)

    def _at_constant(self, reports: Sequence[GradientFlowReport]) -> tuple[int, float]:
        """For how many steps up to now the loss has been at the level of the best constant answer, and its mean level."""
        known = [(report.step, report.over_constant) for report in reports]
        near = [*takewhile(lambda one: abs(one[1] - 1) < 2 * self.still, reversed(known))]
        if len(near) < 2 or near[0][1] < near[1][1] - FLAT:  # it falls
            return 0, math.nan
        steps = 2 * near[0][0] - near[1][0] - near[-1][0]  # windows are as long as the last one
        return steps, statistics.fmean(level for _, level in near)


def _over_constant(report: GradientFlowReport) -> float:
    """The median of the last losses over that of the best constant answer, where they are nothing but that distance; else 0."""
    best, known = report.learned.constant_loss, report.minimized.finite[-BLOCK:]
    return statistics.median(known) / best if len(known) == BLOCK and report.loss_sign and best else 0.0


def _warms_up(report: GradientFlowReport) -> bool:
    """Whether a learning rate is the largest so far, and its schedule goes on to a larger one."""
    groups = [group for stats in report.optimizers.values() for group in stats.groups]
    known = [(group.lr, group.lr_peak or 0.0, group.lr_initial or 0.0) for group in groups if group.lr is not None]
    return any(peak <= rate < initial for rate, peak, initial in known)


ENOUGH = 8  # losses of a window whose mean is compared with the first one: fewer may differ by chance
MOST_LONGER = 100.0  # a ratio any nearer to 1 is rounding


def factor_to_best(step_ratio: float) -> float:
    """The factor between the best length of a step and its own, if the loss is quadratic along it: 1 / (2 (1 - ratio))."""
    return min(1.0 / (2.0 * (1.0 - step_ratio)), MOST_LONGER) if step_ratio < 1.0 else MOST_LONGER


class StepTooLong(Rule, kind="step_too_long", shares=("size",)):
    """Steps that end about as high as they began, or higher; or that nearly replace weights, and ruin the loss.

    It is a warning where they are measured to ruin the loss, or it stays ruined for two windows in a row or to the end, or is not
    finite: of 31 drawn trainings with such a first window 17 learned in the end, and of these 15 had recovered in the second. A
    loss of more calls than there were at first, as that of an agent's episodes, is not compared.

    Attributes:
        threshold: Median step ratio below which it counts.
        ruined: Mean loss of a window, or of its end, over the first loss, above which steps have ruined it.
        far: The same, above which one window is enough.
        size: Where no step ratio says so: the largest share of a weight that a step changed, the median of all weights, from which
            on it is the steps that did.
    """

    threshold: float = 0.1
    min_reruns: ClassVar[int] = 4  # measured steps that there must be
    ruined: ClassVar[float] = 1.5
    far: ClassVar[float] = 1e4
    varies: ClassVar[float] = 1.1  # calls in a batch of one window over those of another: a sum over more of them is larger
    size: float = 0.1

    def __call__(self, report: GradientFlowReport) -> Alerts:
        times, stays = self._ruin(report)
        ratio = math.inf
        if report.learned.reruns >= self.min_reruns and report.learned.step_ratio is not None:
            ratio = report.learned.step_ratio
        lower = 1.0 / factor_to_best(ratio) if ratio < self.threshold else 10.0
        advice = (f"Divide the learning rate by {lower:.2g}, or by more", "Warm the learning rate up", "Clip gradients")
        ruin = f", and the loss has been {times:.3g} times that before the first step" * (times > self.ruined)
        if ratio < self.threshold:
            yield self.finding(
                report, SITE, ratio, self.threshold,
                f"steps gain {percent(ratio)} of what their gradients predict on their own batch (limit {percent(self.threshold)}; "
                f"the best length gains 50%){': they raise its loss' * (ratio < 0)}{ruin}.", conclusive=ruin, advice=advice,
            )  # fmt: skip
        elif ruin and (size := max(map(_largest_steps, report.windows))) >= self.size:
            yield self.finding(
                report, SITE, times, self.ruined,
                f"the loss has been {times:.3g} times that before the first step (limit {self.ruined:g} times), and a step changed "
                f"weights by up to {percent(size)} of their size (median of all weights; limit {percent(self.size)}).",
                conclusive=stays,
                advice=advice,
            )  # fmt: skip

    def _ruin(self, report: GradientFlowReport) -> tuple[float, bool]:
        """The most that the loss has been of the first one, in this window and the one before it, and whether it stays so."""
        calls = [*map(_calls, report.windows)]
        if max(calls) > self.varies * min(calls):
            return 0.0, False
        known, lost = [*map(_risen, report.windows)], report.loss is not None and report.loss.nonfinite_steps > 0
        last, ends = known[-2:], report.step >= (report.planned_steps or math.inf)  # no later window shows that it recovers
        return max(known if lost else last), lost or ends or max(last) > self.far or (len(last) == 2 and min(last) > self.ruined)


def _risen(report: GradientFlowReport) -> float:
    """The loss of a window, or of its end, over the first one; 0 where that is not known."""
    loss, first = report.minimized, report.first.loss or NO_LOSS
    if loss.count < ENOUGH or not 0 < first.began < math.inf:
        return 0.0
    level = max(loss.mean, loss.latest) / first.began
    return level if level < math.inf else 0.0


def _calls(report: GradientFlowReport) -> float:
    """How often a module is called in a sampled batch, the median of all, on all ranks together."""
    calls = [stats.calls for stats in report.modules.values()]
    return statistics.median(calls or [1]) / max(report.sampled_batches, 1)


def _largest_steps(report: GradientFlowReport) -> float:
    """The median over the weights of the largest share of it that a measured step has changed."""
    known = [report.parameters[name].update_ratio_max for name in weight_ratios(report) if not report.setups[name].starts_at_zero]
    return statistics.median([ratio or 0.0 for ratio in known] or [0.0])


class StepTooShort(Rule, kind="step_too_short"):
    """Steps that gain exactly what their gradients predict, always in the same direction, and next to nothing.

    Healthy trainings reach each of the three alone.

    Attributes:
        threshold: Median step ratio above which it counts.
    """

    threshold: float = 0.99
    coherence: ClassVar[float] = 0.9  # cosine of the gradients of successive measured steps above which it counts
    gain: ClassVar[float] = 5e-4  # gain of a step, as a share of the loss, below which it counts
    min_reruns: ClassVar[int] = 5  # measured steps that there must be: more than those of a warm-up's start

    def __call__(self, report: GradientFlowReport) -> Alerts:
        learning, level = report.learned, abs((report.loss or NO_LOSS).mean)
        ratio, gain, coherence = learning.step_ratio or 0.0, learning.gain or 0.0, learning.coherence or 0.0
        tiny = 0 < gain < self.gain * level and learning.reruns >= self.min_reruns
        if tiny and ratio > self.threshold and coherence > self.coherence:
            yield self.finding(
                report, SITE, ratio, self.threshold,
                f"steps gain all that their gradients predict ({percent(ratio)}; limit {percent(self.threshold)}), in the same "
                f"direction (cosine {coherence:.2g}), and {percent(gain / level)} of the loss each: longer steps would gain more.",
                conclusive=False,
                advice=(f"Multiply the learning rate by up to {factor_to_best(ratio):.2g}, in steps of ten",),
            )  # fmt: skip


class PartNotLearning(Rule, kind="part_not_learning", shares=("threshold", "size")):
    """A module with many parameters from which next to nothing of the loss's fall comes.

    Attributes:
        threshold: Share of the predicted gain, with twice its standard error, below which it counts.
        size: Share of the trained parameters that the module must hold.
    """

    threshold: float = 1e-4
    size: float = 0.05
    min_steps: ClassVar[int] = 4  # measured steps that there must be

    def __call__(self, report: GradientFlowReport) -> Alerts:
        learning, found = report.learned, list[str]()  # outermost ones
        total = (learning.predicted_gain or 0.0) * learning.steps * (learning.steps >= self.min_steps)
        elements = {name: report.setups[name].elements for name in learning.parameters if name in report.setups}
        for module, share in learning.modules.items() if total else ():
            inside = [name for name in elements if name.startswith(f"{module}.")]
            size = sum(elements[name] for name in inside) / max(sum(elements.values()), 1)
            error = math.hypot(*(learning.parameters[name].error for name in inside)) / total
            within = any(module.startswith(f"{one}.") for one in found)
            moves = any(learning.parameters[name].gain != 0 for name in inside)  # where none does, other kinds say so
            if size >= self.size and abs(share) + 2 * error <= self.threshold and moves and not within:
                found.append(module)
                yield self.finding(
                    report, module, share, self.threshold,
                    f"it holds {percent(size)} of the parameters, and {percent(share)} of the predicted fall of the loss "
                    f"comes from it (limit {percent(self.threshold)}).",
                    conclusive=False,
                )  # fmt: skip


__all__ = ["NoProgress", "PartNotLearning", "StepTooLong", "StepTooShort"]

KINDS = (
    Kind(
        "no_progress", "Steps that bring no progress", group="Loss", states="outcome", measures="number",
        causes=(
            wiring.frozen_by_mistake, wiring.wrong_axis, wiring.positions_by_sample, inverted_mask, wiring.detached_state,
            wiring.cut_gradients, data.destroyed_inputs, data.large_inputs, data.large_targets, data.unrelated_targets,
            code.activation_before_loss, weights.large_start, rates.rate_too_low, *steps.STEP_SIZE,
        ),
        meaning="The loss stands still at that of the best constant answer; or steps lower the loss of their own batches, and that "
        "of new ones stands still from the start.",
        formula="change = mean of the last quarter of the last losses / mean of their second quarter - 1\n\n"
        "alert after {NoProgress.min_steps} steps if {NoProgress.over_constant} < over_constant < 1 + {NoProgress.still}\n"
        "      and |change| + 2 standard errors < {NoProgress.still}, unless it falls by more than these\n"
        "      or if it was there for {NoProgress.stays} of the steps so far, {NoProgress.long} at least, in two windows and "
        "more, and did not fall\n      in the last (by more than 4 standard errors, if nothing is added to it)\n"
        "      or if the median of the last 32 losses > {NoProgress.behind} * that of the best constant answer when half of the "
        "planned\n      steps are taken, or > {NoProgress.over_constant} times when {NoProgress.late} of them are, at least "
        "{NoProgress.long}, and it falls by less than {NoProgress.still};\n      and nothing is added to it\n"
        "info where over_constant is not known if progress < {NoProgress.threshold} while a step gains more than {NoProgress.gain} "
        "of the loss\n     and the loss has fallen by less than {NoProgress.fall} of its start",
        inconclusive="in the first {NoProgress.begun} of the planned steps, during the warm-up, and where the loss of a constant "
        "answer is not known",
        advice=("Check that labels belong to their inputs", "Check that different inputs give different outputs at each layer"),
    ),
    Kind(
        "step_too_long", "Steps that are too long", group="Updates", states="symptom", measures="number",
        causes=(
            weights.stretching_start, weights.initial_scale, weights.large_start, *steps.STEP_SIZE, data.large_inputs,
            weights.stretching_recurrence, data.large_targets,
        ),
        meaning="The batch of a step was run again after the update: the step gained next to nothing of what its gradient "
        "predicts, or raised the loss. Or steps nearly replace weights, and the loss is far above what it was before the first.",
        formula="ratio = median over the last measured steps of (loss before - loss after) / predicted gain\n\n"
        "alert if ratio < {StepTooLong.threshold}, with at least {StepTooLong.min_reruns} measured steps\n"
        "      or mean loss > {StepTooLong.ruined} * the first loss, in this window or the one before,\n"
        "         and median over the weights of the largest update_ratio >= {StepTooLong.size}",
        inconclusive="unless the loss is above {StepTooLong.ruined} times the first one: where no step ratio is measured, for two "
        "windows in a row or to the end, or above {StepTooLong.far} times it",
        advice=("Lower the learning rate", "Warm the learning rate up", "Clip gradients"),
    ),
    Kind(
        "step_too_short", "Steps that are too short", group="Updates", states="symptom", measures="number",
        causes=(rates.rate_too_low,),
        meaning="Steps gain all that their gradients predict, point the same way, and each gains next to nothing of the loss.",
        formula="alert if ratio > {StepTooShort.threshold} and coherence > {StepTooShort.coherence}\n"
        "     and gain of a step < {StepTooShort.gain} * loss, with at least {StepTooShort.min_reruns} measured steps",
        inconclusive=ALWAYS,
        advice=("Raise the learning rate",),
    ),
    Kind(
        "part_not_learning", "Parts that do not learn", group="Updates", states="symptom", measures="share",
        meaning="A module holds many of the parameters, and next to nothing of the predicted fall of the loss comes from it.",
        formula="share = predicted gain of the module's parameters / that of all\n\n"
        "alert if |share| + 2 standard errors < {PartNotLearning.threshold}\n"
        "     in a module with at least {PartNotLearning.size} of the parameters",
        inconclusive=ALWAYS,
        advice=("Check the gradient flow before it", "Check its learning rate", "Add residual connections or normalisation"),
    ),
)  # fmt: skip
