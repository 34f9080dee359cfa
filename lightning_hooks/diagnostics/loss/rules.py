"""The training loss: NaN or infinite values, leaps, a rise, a wrong sign."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent
from lightning_hooks.diagnostics.causes import code, steps
from lightning_hooks.diagnostics.loss.report import BEFORE, BLOCK, LASTING, NO_LOSS, LossReport
from lightning_hooks.diagnostics.reports import GradientFlowReport

SITE = "loss"  # the site of alerts on the training loss
MEANS = 16  # means of losses in a row of which the trend is tested


class LossNonfinite(Rule, kind="loss_nonfinite"):
    """A loss that is NaN or infinite.

    Lightning's ``EarlyStopping(check_finite=True)`` ends a training at such a value: the gradients are NaN, and so are all weights
    after one step. Every batch is looked at, sampled or not, so the batch is exact. A loss scaler skips such a step: if the loss
    is finite again at the end of the window, or is in half of its batches or more, the alert is an info.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss = report.loss or NO_LOSS
        skipped = loss.scaled and (any(map(math.isfinite, loss.recent[-1:])) or loss.nonfinite_steps <= loss.count)
        if loss.nonfinite_steps:
            yield self.finding(
                report, SITE, loss.nonfinite_steps, 0.0,
                f"the loss was NaN or infinite in {loss.nonfinite_steps} of {loss.nonfinite_steps + loss.count} training batches, "
                f"first in batch {loss.first_nonfinite_batch} of the epoch, at global step {loss.first_nonfinite_step}"
                f"{'; the loss scaler skips such steps' * skipped}.",
                conclusive=not skipped,
                since_step=loss.first_nonfinite_step,
                batch=loss.first_nonfinite_batch,
            )  # fmt: skip


class LossSpiking(Rule, kind="loss_spike"):
    """A loss that leaps far above that of the batches before, and stays there for several batches.

    OLMo-core's ``SkipStepOptimizer`` calls a step an outlier if its loss is more than 6 standard deviations above the mean of the
    128 steps before, after the first 64; PaLM (Chowdhery et al. 2022, section 5.1) went back to a checkpoint before each spike.
    In small noisy batches one loss alone is often so large. So 3 in a row must be, each must exceed the largest before by
    ``ratio`` times its distance from the mean, and they must undo a share ``lost`` of what the loss has fallen. In the healthy
    trainings of the fault zoo, each carried on for 700 batches, the ratio of 3 in a row is at most 0.7 where the loss does not
    leap and come back.

    Attributes:
        sigmas: Standard deviations above the mean of the batches before.
        settle: Batches at the start of an epoch in which a leap is not named: data may be others on purpose (a curriculum), or
            layers unfrozen.
    """

    sigmas: float = 6.0
    ratio: ClassVar[float] = 2.0  # distance from that mean, over that of the largest loss before
    lost: ClassVar[float] = 0.1  # share of the fall of the loss since training began
    settle: ClassVar[int] = 3

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss = report.loss or NO_LOSS
        spike = loss.spike
        large = spike is not None and spike.sigmas > self.sigmas and spike.ratio > self.ratio
        if spike is not None and large and not 0 <= spike.batch < self.settle and spike.loss - spike.mean > self.lost * _fall(loss):
            here = spike.batch >= 0
            where = ("at the end of the epoch before", f"at training batch {spike.batch} of the epoch")[here]
            yield self.finding(
                report, SITE, spike.ratio, self.ratio,
                f"{where} the loss leapt to at least {spike.loss:.3g} for {LASTING} batches: {spike.sigmas:.3g} standard "
                f"deviations above the mean of {spike.before} batches before ({spike.mean:.3g}), {spike.ratio:.3g} times as far as "
                f"their largest (limit {self.ratio:.3g}).",
                batch=spike.batch if here else None,
            )  # fmt: skip


class LossDiverging(Rule, kind="loss_diverging", shares=("lost",)):
    """A loss that had fallen and rises again.

    The trend is the rank test of Mann (1945) and Kendall (1975) over 16 means of 128 batches, which is the same on a linear
    and a logarithmic scale. It says nothing about size, so a share ``lost`` of what the loss had fallen must be undone too,
    clearly more than the difference between two batches, and the loss must not be falling again, as it does after harder data
    have come. The last 256 losses are known whatever the window, so that every window is judged.

    Attributes:
        lost: Share of the fall since training began that is undone.
    """

    lost: float = 0.3
    trend: ClassVar[float] = 2.5  # the test's standard normal score
    noise: ClassVar[float] = 3.0  # rise over the noise from batch to batch
    min_steps: ClassVar[int] = 64  # batches that must be known

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss = report.minimized
        if not rises(loss, self.noise, self.min_steps):
            return
        known = loss.finite
        now, fall = statistics.median(known[-BLOCK:]), _fall(loss)
        rise, trends = now - loss.lowest, (rising(known[-BEFORE:]), rising(known[-2 * BLOCK :]))
        if fall > _noise(known) and rise > self.lost * fall and trends[0] > self.trend and trends[1] > -1:
            yield self.finding(
                report, SITE, rise / fall, self.lost,
                f"the loss rises: its median over {BLOCK} batches is {now:.3g} now, and was {loss.lowest:.3g} at its lowest and "
                f"{loss.start:.3g} at the start: {percent(min(rise / fall, 1.0))} of the fall is undone (limit "
                f"{percent(self.lost)}).",
            )  # fmt: skip


class LossMaximized(Rule, kind="loss_diverging"):
    """A distance of outputs from targets, such as a cross entropy, that is maximized: ``maximize=True``, or a minus before it.

    Not under manual optimization, where an adversary may do so.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for name, stats in report.optimizers.items():
            ways = {group.maximize for group in stats.groups}  # of both in a min-max problem
            climbs = report.loss_sign > 0
            if ways == {climbs} and report.loss_sign and report.minimized.optimized:
                how, what = (
                    (f"{name} has maximize=True", "maximize=True") if climbs else ("there is a minus before it", "the minus")
                )
                yield self.finding(
                    report, SITE, 1.0, 0.0,
                    f"it is a distance of outputs from targets, and is maximized: {how}.",
                    advice=(f"Remove {what}",),
                )  # fmt: skip


def _fall(loss: LossReport) -> float:
    """How far the loss has fallen since training began; 0 if it has not, or that is not known."""
    return max(0.0, loss.start - loss.lowest)


def _noise(losses: Sequence[float]) -> float:
    """The standard deviation from batch to batch, of differences of neighbours, which no trend enters."""
    steps = [abs(later - earlier) for earlier, later in pairwise(losses)]
    return 1.4826 * statistics.median(steps) / math.sqrt(2)


class LossWithoutBound(Rule, kind="loss_diverging"):
    """A loss that falls far below 0 while the distance of outputs from targets in it is no better than a constant's.

    A cross entropy or a squared error is never below 0, so it is another part that falls: a penalty or a divergence with the wrong
    sign has no lowest value.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss, constant = report.minimized, report.over_constant
        if constant >= 1 and loss.latest < -loss.start < 0:
            yield self.finding(
                report, SITE, loss.latest / loss.start, -1.0,
                f"it has fallen from {loss.start:.3g} to {loss.latest:.3g}, while the distance of outputs from targets in it is "
                f"{constant:.3g} of that of the best constant answer: what falls is another part of it.",
                advice=("Check the sign of each term of the loss",),
            )  # fmt: skip


class TargetsRecede(Rule, kind="loss_diverging"):
    """Outputs that move away from their targets, window after window, whatever the loss as a whole does.

    Under manual optimization too, and where a minus, or another term, makes the loss itself fall. A net that learns comes nearer.
    Where targets become alike, as the returns of a policy that learns, only the best constant answer does.

    Attributes:
        factor: The loss over that of the best constant answer, above which it counts; and both over what they were in the first
            window.
    """

    factor: float = 3.0
    windows: ClassVar[int] = 3  # windows in a row, each of which must be worse than the one before
    rise: ClassVar[float] = 1.05  # the last of their losses over the first, above which it counts

    def __call__(self, report: GradientFlowReport) -> Alerts:
        now, first = report.over_constant, report.first.over_constant
        distances = [one.over_constant * (one.learned.constant_loss or math.nan) for one in report.windows]
        last, limit = distances[-self.windows :], self.factor * max(1.0, first)
        grows = len(last) == self.windows and all(earlier < later for earlier, later in pairwise(last))
        if grows and last[-1] > self.rise * last[0] and now > limit and last[-1] > self.factor * distances[0]:
            yield self.finding(
                report, SITE, now, limit,
                f"outputs are {now:.3g} times as far from their targets as the best constant answer (limit {limit:.3g}), and were "
                f"{first:.3g} times in the first window: they move away, window after window.",
                advice=("Check the sign of the loss, and of each of its terms", "Try a lower learning rate"),
            )  # fmt: skip


def rises(loss: LossReport, noise: float, min_steps: int = 64) -> bool:
    """Whether a loss is above its lowest level by so many times the noise from batch to batch.

    Args:
        loss: The loss, which the training loop minimises.
        noise: How many times.
        min_steps: Losses that must be known.
    """
    known = loss.finite
    judged = loss.optimized and len(known) >= min_steps
    return judged and statistics.median(known[-BLOCK:]) - loss.lowest > noise * _noise(known)


def rising(losses: Sequence[float]) -> float:
    """The Mann-Kendall score of a rise: standard normal where there is no trend.

    Losses, 16 at least, are taken together into so many means: neighbours may depend on each other.
    """
    size = len(losses) // MEANS
    last = losses[len(losses) - size * MEANS :]
    means = [statistics.fmean(last[start : start + size]) for start in range(0, len(last), size)]
    score = sum((later > earlier) - (later < earlier) for earlier, later in combinations(means, 2))
    return score / math.sqrt(MEANS * (MEANS - 1) * (2 * MEANS + 5) / 18)


__all__ = ["LossDiverging", "LossMaximized", "LossNonfinite", "LossSpiking", "LossWithoutBound", "TargetsRecede"]

KINDS = (
    Kind(
        "loss_nonfinite", "A loss that is NaN or infinite", group="Loss", states="fact", about="nonfinite",
        causes=code.NONFINITE,
        meaning="The loss of a training batch is NaN or infinite. Every batch is looked at, also those that are not sampled, so "
        "the batch and the step are exact. If a layer's output was not finite before, that is the cause.",
        formula="alert if the loss of any training batch of the window is NaN or infinite\n"
        "an info where a loss scaler skips such steps and the loss is finite again at the end of the window",
        critical=0.0,
        inconclusive="where a loss scaler skips the step",
        advice=("Check that batch and the arguments of the loss (log of 0, division by 0, an empty mask)",
            "Set every_n_steps=1 to see which layer was first"),
    ),
    Kind(
        "loss_spike", "A loss far above that before", group="Loss", states="outcome", about="batch",
        causes=(*steps.LARGE_STEP, code.bad_batch),
        meaning="The loss leaps far above that of the batches before and stays there for several batches. What the model learned "
        "is partly lost.",
        formula="mean, std, largest = those of the 128 losses before, after at least 64;  low = the smallest of 3 losses "
        "in a row\n\n"
        "alert if low > mean + {LossSpiking.sigmas} * std\n"
        "     and low > mean + {LossSpiking.ratio} * (largest - mean)\n"
        "     and low - mean > {LossSpiking.lost} * (loss at the start - lowest level so far)\n"
        "Not in the first {LossSpiking.settle} batches of an epoch, nor under manual optimisation, where the loss may be "
        "anything.",
        advice=("Try a lower learning rate, or a longer warm-up", "Check the data of that batch",
            "Restart from a checkpoint before it if the loss does not come back"),
    ),
    Kind(
        "loss_diverging", "A loss that rises again", group="Loss", states="outcome", measures="share",
        causes=steps.LARGE_STEP,
        meaning="The loss had fallen and rises again, against what the optimizer minimises; or it is a distance of outputs from "
        "targets, such as a cross entropy, and is made larger, by `maximize=True` or a minus before it; or it falls below 0 by a "
        "part without a lowest value; or outputs move away from their targets.",
        formula="now = median of the last 32 losses;  lowest = the lowest median of 32 losses in a row so far\n"
        "lost = (now - lowest) / (loss at the start - lowest)\n\n"
        "alert if lost > {LossDiverging.lost}, and now - lowest > {LossDiverging.noise} * standard deviation from batch to batch,\n"
        "     and the Mann-Kendall score of the last 128 losses > {LossDiverging.trend}, from {LossDiverging.min_steps} losses "
        "on,\n"
        "     and that of the last 64 > -1\n"
        "or if the loss is a cross entropy, mse, smooth l1, huber or binary cross entropy, or a mean of them, and all groups of "
        "an\n"
        "   optimizer have maximize=True, or it is minus one of these and none has\n"
        "or if the mean of the last quarter of the last losses < -(loss at the start) < 0, and over_constant >= 1\n"
        "Not under manual optimisation, but for:\n"
        "or if over_constant * loss of the best constant answer rose from window to window in the last {TargetsRecede.windows}, by "
        "a factor\n"
        "   of more than {TargetsRecede.rise},\n"
        "   and is > {TargetsRecede.factor} * that of the first, as over_constant is, and > {TargetsRecede.factor}",
        advice=("Try a lower learning rate, and check what its scheduler does",
            "Check the sign and the weight of each term of the loss"),
    ),
)  # fmt: skip
