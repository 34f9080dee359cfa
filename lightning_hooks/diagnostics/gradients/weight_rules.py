"""Weights that do not change, though they have a gradient, and weights that grow: fast, or while the loss rises."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent
from lightning_hooks.diagnostics.causes import code, rates, steps, wiring
from lightning_hooks.diagnostics.loss.report import BLOCK
from lightning_hooks.diagnostics.loss.rules import rises, rising
from lightning_hooks.diagnostics.reports import GradientFlowReport, has_converged, is_scale_free
from lightning_hooks.hooks.selection import outwards
from lightning_hooks.statistics.weight_sample import UPDATE_SAMPLE


class NotUpdated(Rule, kind="not_updated"):
    """Weights that do not change although they have a gradient, while others do.

    Frozen weights, those with a learning rate of 0 and those whose step would be lost in rounding do not count, nor does a
    training without any change, which is :class:`UpdateTooSmall`'s. Of a large weight a sample of the elements is compared; it is
    judged only where its gradient is not sparse.

    Attributes:
        min_steps: Measured optimizer steps below which a window is not judged.
        min_steps_of_all: The same where none of an optimizer's weights moves, in this window and the one before: it may take its
            steps together every few calls.
        sparse: Share of zeros in the gradient of a large weight above which updates of other elements could have been missed.
    """

    min_steps: int = 3
    min_steps_of_all: ClassVar[int] = 5
    sparse: ClassVar[float] = 0.9
    rounding: ClassVar[float] = 6e-8  # a step below this is lost in the rounding of a float32 weight of about 1 (2 ** -24)

    def __call__(self, report: GradientFlowReport) -> Alerts:
        moves = _moving_weights(report)
        moving = {held for name, moved in moves.items() if moved for held in report.setups[name].optimizers}
        standing = [(one, name) for one in report.earlier[-1:] for name, moved in _moving_weights(one).items() if not moved]
        stood = {name: one.parameters[name].steps for one, name in standing}
        still = [
            name
            for name, moved in moves.items()
            if moving and not moved and self._could_move(report, name)
            if report.parameters[name].steps + stood.get(name, 0) >= self.min_steps_of_all
            or moving.issuperset(report.setups[name].optimizers)
        ]
        for site, names in _by_module(still, moves).items():
            stats, setup = report.parameters[names[0]], report.setups[names[0]]
            which = names[0] + f" and {len(names) - 1} more of its weights" * (len(names) > 1)
            whose = f"of {setup.optimizers[0]}" if setup.optimizers[0] in moving else f"(of {', '.join(sorted(moving))})"
            yield self.finding(
                report, site, 0.0, 0.0,
                f"{which} did not change in {stats.steps} measured steps, while other weights {whose} did, although it has a "
                f"gradient (norm {stats.norm:.2g}) and a learning rate of {setup.lr or 0.0:.2g}.",
            )  # fmt: skip

    def _could_move(self, report: GradientFlowReport, name: str) -> bool:
        stats, setup = report.parameters[name], report.setups[name]
        judged = setup.trains and setup.optimizers and stats.norm > 0 and stats.steps >= self.min_steps
        seen_whole = setup.elements <= UPDATE_SAMPLE or stats.zero_fraction <= self.sparse
        step = (setup.lr or 0.0) * (1.0 if all(map(is_scale_free, setup.optimizers)) else stats.rms)
        return bool(judged and seen_whole and step > self.rounding)


class NeverStepped(Rule, kind="not_updated", judges="epoch"):
    """Gradients are computed in every batch, and no optimizer takes a step, or one of several takes none.

    One of several may wait for its turn, as the generator does while the discriminator warms up: it must not have taken a step
    in any window so far, though gradients reach modules whose parameters it holds.

    Attributes:
        min_batches: Batches since training started below which it is not judged.
    """

    min_batches: int = 20

    def __call__(self, report: GradientFlowReport) -> Alerts:
        windows = report.windows
        batches = sum(window.batches for window in windows)
        held = {name: setup for name, setup in report.setups.items() if setup.optimizers and setup.trains}
        stepping = {name for window in windows for setup in window.setups.values() if setup.steps for name in setup.optimizers}
        still = list(dict.fromkeys(name for setup in held.values() for name in setup.optimizers if name not in stepping))
        waiting = {name.rpartition(".")[0] for name, setup in held.items() if stepping.isdisjoint(setup.optimizers)}
        reached = any(stats.rms > 0 for name, stats in report.modules.items() if name in waiting)
        if still and report.modules and (reached or not stepping) and batches >= self.min_batches:
            what = ("nothing is learned", "what they hold does not learn")[bool(stepping)]
            yield self.finding(
                report, still[0], 0.0, 0.0,
                f"gradients were computed, but {', '.join(still)} took no step in {batches} batches: {what}.",
                advice=("Call optimizer.step() after the backward pass",),
            )  # fmt: skip


def _moving_weights(report: GradientFlowReport) -> dict[str, bool]:
    """Of the weights with a measured update, whether it changed them: also of those that are all zeros."""
    known = {name: stats.moved for name, stats in report.parameters.items() if stats.moved is not None}
    return {name: moved for name, moved in known.items() if name in report.setups and report.setups[name].dimensions > 1}


def _by_module(still: Collection[str], weights: Iterable[str]) -> dict[str, list[str]]:
    """Weights by the outermost module all of whose weights are among them, or each by its own name."""
    moving = {outer for name in weights if name not in still for outer in outwards(name)}
    found = grouped((next((outer for outer in outwards(name)[-2:1:-1] if outer not in moving), name), name) for name in still)
    return {site if len(names) > 1 else names[0]: names for site, names in found.items()}


class UpdatesLost(Rule, kind="updates_lost", shares=("threshold",)):
    """Weights in half precision that hardly any update changes, since it is smaller than their rounding.

    A bfloat16 number has 8 significant bits: a change below 0.2 to 0.4 % of it is lost (Zamirai et al., "Revisiting BFloat16
    Training", 2020). Healthy trainings with such weights lose 50 to 79 % of the updates of single elements at a step, each time of
    others. It is no alert where the schedule has a low learning rate at the moment.

    Attributes:
        threshold: Share of a weight's elements whose update was lost, above which it counts.
    """

    threshold: float = 0.99
    min_steps: ClassVar[int] = 3  # measured optimizer steps below which a window is not judged
    scheduled: ClassVar[float] = 0.5  # share of its peak below which a learning rate is low on purpose

    def __call__(self, report: GradientFlowReport) -> Alerts:
        lost = {
            name: stats.lost_fraction or 0.0
            for name, stats in report.parameters.items()
            if (stats.lost_fraction or 0.0) > self.threshold and stats.steps >= self.min_steps
            if name in report.setups and report.setups[name].dimensions > 1 and report.setups[name].has_rate(self.scheduled)
        }
        for name in sorted(lost, key=lambda name: -lost[name]) if not has_converged(report) else ():
            yield self.finding(
                report, name, lost[name], self.threshold,
                f"{percent(lost[name])} of its elements keep their value at a measured step although they have a gradient (limit "
                f"{percent(self.threshold)}; 50 to 80% is usual with such weights): the step (learning rate "
                f"{report.setups[name].lr or 0.0:.1e}) is smaller than the rounding of its values.",
            )  # fmt: skip


class WeightsGrowing(Rule, kind="weights_growing"):
    """Weights whose norm doubles from one window to the next, no more slowly than before, when the first windows are over.

    A weight that starts at or near zero, biases and scales of norm layers are not judged, nor is a window in which the learning
    rate rises. (Weights that grow come before the divergence of large
    transformers: Wortsman et al. 2023, arXiv 2309.14322.)

    Attributes:
        factor: Growth of the norm from one window's end to the next, above which it counts.
    """

    factor: float = 2.0
    min_windows: ClassVar[int] = 3  # earlier reports below which nothing is judged: weights find their size at first
    rise: ClassVar[float] = 1.01  # how many times the learning rate of the window before explains growth
    slowing: ClassVar[float] = 0.9  # share of the growth in the window before below which growth comes to an end by itself

    def __call__(self, report: GradientFlowReport) -> Alerts:
        if len(report.earlier) < self.min_windows:
            return
        rates = {name: self.rise * (setup.lr or 0.0) for name, setup in report.earlier[-1].setups.items() if setup.lr is not None}
        steady = [name for name, setup in report.setups.items() if setup.lr is not None and setup.lr <= rates.get(name, -1.0)]
        found = [
            (name, earlier, then, now)
            for name, (earlier, then, now) in _norms(report, 2).items()
            if name in steady and now > self.factor * then and now / then > self.slowing * then / earlier
        ]
        for name, earlier, then, now in sorted(found, key=lambda one: -one[3] / one[2]):
            yield self.finding(
                report, name, now / then, self.factor,
                f"its norm grew {now / then:.2g} times in this window, from {then:.3g} to {now:.3g} "
                f"(limit {self.factor:g} times; {then / earlier:.2g} times in the window before).",
            )  # fmt: skip


class GrowthWithoutGain(Rule, kind="weights_growing"):
    """Weights that grow by the same factor from window to window, or faster, while the loss rises.

    In a training that learns, growth slows down as weights find their size, or the loss falls with it. Neither is so under a
    learning rate that has become too high, or a decay with the wrong sign; the loss is still far from diverging then. A learning
    rate that rises is no excuse, as it is for :class:`WeightsGrowing`: the loss says that it went too far. A weight that starts at
    or near zero, biases and scales of norm layers are not judged. The loss of a policy, or another one that is no distance of
    outputs from targets, may rise while it learns.

    Attributes:
        factor: Growth of the norm over three windows, above which it counts.
        noise: Rise of the loss, the median of its last 32 values, above its lowest level, over the noise from batch to batch.
    """

    factor: float = 1.25
    slowing: ClassVar[float] = 0.8  # share of the growth in the window before below which growth slows down
    noise: ClassVar[float] = 0.75

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss = report.minimized
        if len(report.earlier) < 3 or not report.loss_sign or not rises(loss, self.noise) or rising(loss.recent[-2 * BLOCK :]) < -1:
            return  # at last it falls again: other data, or another task, have raised it once
        found: dict[str, float] = {}
        for name, norms in _norms(report, 3).items():
            rates = [math.log(later / earlier) for earlier, later in pairwise(norms)]
            if norms[-1] > self.factor * norms[0] and all(now > self.slowing * then > 0 for then, now in pairwise(rates)):
                found[name] = norms[-1] / norms[0]
        for name in sorted(found, key=lambda name: -found[name]):
            yield self.finding(
                report, name, found[name], self.factor,
                f"its norm grew {found[name]:.3g} times over three windows (limit {self.factor:g} times), no more slowly from one "
                f"to the next, and the loss rises: it was {loss.lowest:.3g} at its lowest.",
            )  # fmt: skip


def _norms(report: GradientFlowReport, windows: int) -> dict[str, list[float]]:
    """The norms of weights over the last so many windows and this one.

    Left out are weights that start at or near zero, that have come back from a norm below half of the first window's, or whose norm
    is not known in one of the windows.
    """
    found: dict[str, list[float]] = {}
    for name in [name for name, setup in report.setups.items() if setup.dimensions > 1 and not setup.starts_at_zero]:
        known = [each.parameters.get(name) for each in (report.first, *report.windows[-windows - 1 :])]
        first, *norms = [0.0 if stats is None else stats.weight_norm or 0.0 for stats in known]
        if min(norms) >= first / 2 > 0:
            found[name] = norms
    return found


__all__ = ["GrowthWithoutGain", "NeverStepped", "NotUpdated", "UpdatesLost", "WeightsGrowing"]

KINDS = (
    Kind(
        "not_updated", "Weights that do not change", group="Updates", states="fact", measures="nothing",
        causes=(wiring.another_optimizer, wiring.strided_weight, code.written_back, rates.rate_too_low, rates.wrong_schedule),
        meaning="A weight, or all weights of a module, did not change by one bit, while other weights moved.",
        formula="alert if update_ratio = 0 in an epoch with at least {NotUpdated.min_steps} measured steps,\n"
        "      with a gradient and a learning rate above 0, while other weights of the optimizer move\n"
        "or if no optimizer takes a step in {NeverStepped.min_batches} or more batches that have gradients,\n"
        "or one of several has taken none since training started, and gradients reach what it holds",
        advice=("Find code that writes weights: an average copied back, a parametrization, a step of your own",
            "Raise its learning rate, or keep the weights in float32",
            "Freeze it with requires_grad_(False) if it is not to learn"),
    ),
    Kind(
        "updates_lost", "Updates lost in rounding", group="Updates", states="fact", measures="share",
        causes=(code.half_weights, rates.rate_too_low),
        meaning="A weight is stored in half precision, and almost none of its elements change at a step: each change is smaller "
        "than the distance to the next number that bfloat16 or float16 can hold. The weight stands still although the optimizer "
        "works.",
        formula="lost_fraction = elements with a gradient that keep their value / elements with a gradient, at measured steps\n\n"
        "alert if lost_fraction > {UpdatesLost.threshold}, in at least {UpdatesLost.min_steps} measured steps",
        advice=("Keep the weights in float32: precision='bf16-mixed'", "Raise the learning rate",
            "Use an optimizer that rounds at random or adds up what is lost (Kahan summation)"),
    ),
    Kind(
        "weights_growing", "Weights that grow fast", group="Updates", states="symptom",
        causes=(code.changed_between_steps, *steps.STEP_SIZE),
        meaning="The norm of a weight doubled within one window, faster than in the window before, or keeps growing by the same "
        "factor from window to window while the loss rises. Training that goes on like this diverges.",
        formula="alert if weight_norm > {WeightsGrowing.factor} * that of the window before, growing no more slowly than before,\n"
        "      after {WeightsGrowing.min_windows} windows\n"
        "      or weight_norm > {GrowthWithoutGain.factor} * that three windows before, growing no more slowly than before in "
        "each,\n"
        "      while the median of the last 32 losses > its lowest + {GrowthWithoutGain.noise} * standard deviation from batch to "
        "batch,\n      the loss does not fall again, and it is a distance of outputs from targets",
        advice=("Try a lower learning rate", "Add weight decay, or a normalisation layer"),
    ),
)  # fmt: skip
