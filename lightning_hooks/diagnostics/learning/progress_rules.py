"""A loss that makes no progress."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind, Severity
from lightning_hooks.declare.rule import Rule, percent
from lightning_hooks.diagnostics.attention.rules import inverted_mask
from lightning_hooks.diagnostics.causes.code import activation_before_loss
from lightning_hooks.diagnostics.causes.data import destroyed_inputs, large_inputs, unrelated_targets
from lightning_hooks.diagnostics.causes.rates import rate_too_low
from lightning_hooks.diagnostics.causes.steps import STEP_SIZE
from lightning_hooks.diagnostics.causes.weights import constant_weights
from lightning_hooks.diagnostics.causes.wiring import (
    cut_gradients,
    detached_state,
    frozen_by_mistake,
    positions_by_sample,
    wrong_axis,
)
from lightning_hooks.diagnostics.loss.report import BLOCK
from lightning_hooks.diagnostics.loss.rules import SITE
from lightning_hooks.diagnostics.reports import GradientFlowReport

FLAT = 0.005  # fall of the loss over that of the best constant answer, from one window to the next, above which it falls


@dataclass(frozen=True, slots=True, eq=False)
class NoProgress(Rule):
    """A loss that stands still at that of the best constant answer, or whose steps lower the loss of their own batches alone.

    The first is harm that is measured, and a warning where the loss of the last batches is as large as that of those before them,
    beyond what chance makes of so few, unless the learning rate still warms up or a long training has only begun: a language model
    stays at the frequencies of its tokens for a while. So is a loss that was there in all windows for half of the training so far,
    however few or unlike its batches are, and whatever else is added to it, and one that is far above it when half of the planned
    steps are taken. The other is an info.

    Attributes:
        threshold: Fall of the loss on new batches over the sum of the gains, below which it counts.
        fall: Share of the loss at the start that its lowest level may lie below it.
        gain: Gain of a step, as a share of the loss, from which on steps count as gaining.
        over_constant: Loss over that of the best constant answer from which on the model is no better than that.
        still: Share by which a loss that stands still may change, with its error, and be above that of the best constant answer:
            farther above it is on its way.
        min_steps: Optimizer steps that there must be.
        begun: Share of the planned steps before which it is an info.
        stays: Share of the steps so far, in several windows, for which the loss must have been there, still or not.
        long: The fewest steps for that.
        behind: Median of the last losses over that of the best constant answer, above which a model that is half trained is
            worse than that.
    """

    kind: ClassVar[str] = "no_progress"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "gain", "over_constant")

    threshold: float = 0.02
    fall: ClassVar[float] = 0.1
    gain: float = 1e-3
    over_constant: float = 0.98
    still: ClassVar[float] = 0.03
    min_steps: ClassVar[int] = 40
    begun: ClassVar[float] = 0.1
    stays: ClassVar[float] = 0.5
    long: ClassVar[int] = 100
    behind: ClassVar[float] = 1.5

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert if the loss makes no progress."""
        learning, loss = report.learning, report.loss
        if learning is None or loss is None or not loss.optimized or report.step < self.min_steps:
            return
        constant = learning.over_constant
        if constant is not None:
            if loss.recent and loss.mean > 0:
                constant = min(constant, constant * loss.latest / loss.mean)  # it may have fallen within the window
            change, error = loss.change(self.min_steps) or (math.inf, 0.0)
            still = abs(change) + error < self.still and change >= -error  # it does not fall, however slowly
            waits = _warms_up(report) or report.step < self.begun * (report.planned_steps or 0)
            steps, level = self._at_constant(report.windows)
            behind = _over_constant(report)
            if still and self.over_constant < constant < 1 + self.still:
                yield self._found(
                    report, constant, self.over_constant, "info" if waits else "warning",
                    f"the loss is {constant:.3g} of that of the best constant answer (limit {self.over_constant:g}) and stands "
                    "still",
                )  # fmt: skip
            elif steps >= max(self.long, self.stays * report.step) and self.over_constant < level < 1 + self.still:
                yield self._found(
                    report, level, self.over_constant, "info" if waits else "warning",
                    f"the loss is {level:.3g} of that of the best constant answer (limit {self.over_constant:g}), and has been for "
                    f"{steps} of {report.step} steps",
                )  # fmt: skip
            elif behind > self.behind and report.step >= (report.planned_steps or math.inf) / 2:
                yield self._found(
                    report, behind, self.behind, "warning",
                    f"the loss is {behind:.3g} times that of the best constant answer (limit {self.behind:g}) after "
                    f"{report.step} of {report.planned_steps} steps",
                )  # fmt: skip
            return
        progress, gain = learning.progress, learning.gain
        still = math.isfinite(loss.lowest) and loss.start > 0 and loss.lowest > (1 - self.fall) * loss.start
        if progress is not None and progress < self.threshold and still and gain is not None and gain > self.gain * loss.mean:
            yield self._found(
                report, progress, self.threshold, "info",
                f"a step lowers its own batch's loss by {percent(gain / loss.mean)}, and new batches get "
                f"{percent(max(progress, 0.0))} of that (limit {percent(self.threshold)})",
            )  # fmt: skip

    def _at_constant(self, reports: Sequence[GradientFlowReport]) -> tuple[int, float]:
        """For how many steps up to now the loss has been at the level of the best constant answer, and its mean level."""
        levels = [None if report.learning is None else report.learning.over_constant for report in reports]
        known = [(report.step, math.inf if level is None else level) for report, level in zip(reports, levels, strict=True)]
        near = [*takewhile(lambda one: abs(one[1] - 1) < 2 * self.still, reversed(known))]
        if len(near) < 2 or near[0][1] < near[1][1] - FLAT:  # it falls
            return 0, math.nan
        steps = 2 * near[0][0] - near[1][0] - near[-1][0]  # windows are as long as the last one
        return steps, statistics.fmean(level for _, level in near)

    def _found(self, report: GradientFlowReport, value: float, limit: float, severity: Severity, message: str) -> Alert:
        return self.alert(
            report, SITE, value, limit, severity, f"{message}.",
        )  # fmt: skip


def _over_constant(report: GradientFlowReport) -> float:
    """The median of the last losses over that of the best constant answer, where they are nothing but that distance; else 0."""
    best = None if report.learning is None else report.learning.constant_loss
    known = [] if report.loss is None else report.loss.finite[-BLOCK:]
    return statistics.median(known) / best if len(known) == BLOCK and report.loss_sign and best else 0.0


def _warms_up(report: GradientFlowReport) -> bool:
    """Whether a learning rate is the largest so far, and its schedule goes on to a larger one."""
    groups = [group for stats in report.optimizers.values() for group in stats.groups]
    known = [(group.lr, group.lr_peak or 0.0, group.lr_initial or 0.0) for group in groups if group.lr is not None]
    return any(peak <= rate < initial for rate, peak, initial in known)


__all__ = ["NoProgress"]

KINDS = (
    Kind(
        "no_progress", "Steps that bring no progress", group="Loss", states="outcome", measures="number",
        causes=(
            frozen_by_mistake, wrong_axis, positions_by_sample, inverted_mask, detached_state, cut_gradients, destroyed_inputs,
            large_inputs, constant_weights, unrelated_targets, activation_before_loss, rate_too_low, *STEP_SIZE,
        ),
        meaning="The loss stands still at that of the best constant answer; or steps lower the loss of their own batches, and that "
        "of new ones stands still from the start.",
        formula="change = mean of the last quarter of the last losses / mean of their second quarter - 1\n\n"
        "alert after {NoProgress.min_steps} steps if {NoProgress.over_constant} < over_constant < 1 + {NoProgress.still}\n"
        "      and |change| + 2 standard errors < {NoProgress.still}, unless it falls by more than these\n"
        "      or if it was there for {NoProgress.stays} of the steps so far, {NoProgress.long} at least, in two windows and "
        "more, and did not fall in the last\n"
        "      or if the median of the last 32 losses > {NoProgress.behind} * that of the best constant answer when half of the "
        "planned\n      steps are taken, and nothing is added to it\n"
        "info where over_constant is not known if progress < {NoProgress.threshold} while a step gains more than {NoProgress.gain} "
        "of the loss\n     and the loss has fallen by less than {NoProgress.fall} of its start",
        severities="warning where the loss stands still at that of a constant answer, after {NoProgress.begun} of the planned "
        "steps and the warm-up; else info",
        advice=("Check that labels belong to their inputs", "Check that different inputs give different outputs at each layer"),
    ),
)  # fmt: skip

RULES = (NoProgress(),)
