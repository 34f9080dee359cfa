"""The size of updates: too small, too large, and single ones that are far larger than the others."""

from __future__ import annotations

import math
import statistics
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent
from lightning_hooks.diagnostics.causes import code, steps, wiring
from lightning_hooks.diagnostics.reports import (
    GradientFlowReport,
    falls_within,
    has_converged,
    is_scale_free,
    loss_falls,
    only_the_first_step,
    weight_ratios,
)


class UpdateTooSmall(Rule, kind="update_too_small", judges="epoch"):
    """Updates so small that nothing is learned, although there is a gradient.

    SageMaker's rule asks for less than 1e-8, which is below the rounding of a float32 weight and too late. Where it is known how
    many steps are planned, larger updates count too: those that all steps together cannot make into a change of a weight, unless
    the loss falls all the same. It is no alert where the schedule has a low learning rate at the moment. A warm-up may start from
    0.

    Attributes:
        threshold: Ratio of update to weight, of every weight of an optimizer, below which it counts.
    """

    threshold: float = 1e-6
    slow: ClassVar[float] = 1e-4  # the same where the sum over all planned steps is below `planned`
    planned: ClassVar[float] = 1e-2  # change over its size that no weight reaches, if all planned steps went in one direction
    min_planned: ClassVar[int] = 64  # fewer planned steps are a trial, which need not learn anything
    falls: ClassVar[float] = 0.9  # share of a window's first losses below which its last ones have fallen
    scheduled: ClassVar[float] = 0.5  # share of its peak below which a learning rate is low on purpose

    def __call__(self, report: GradientFlowReport) -> Alerts:
        if only_the_first_step(report) or has_converged(report):
            return
        steps = report.planned_steps or 0
        few = steps < self.min_planned or falls_within(report, self.falls)
        limit = self.threshold if few else max(self.threshold, min(self.slow, self.planned / steps))
        rated = {name: one for name, one in weight_ratios(report).items() if report.setups[name].has_rate(self.scheduled)}
        by_optimizer = grouped((optimizer, name) for name in rated for optimizer in report.setups[name].optimizers)
        for optimizer, names in by_optimizer.items():
            ratios = _of_usual_size(report, {name: rated[name] for name in names})
            largest = max(ratios, key=ratios.__getitem__)
            if ratios[largest] < limit:
                planned = f", and the {steps} planned steps by less than {percent(self.planned)}" * (limit > self.threshold)
                yield self.finding(
                    report, optimizer, ratios[largest], limit,
                    f"a step changes none of its weights by more than {ratios[largest]:.1e} of their size ({largest}; limit "
                    f"{limit:.0e}; about 1e-3 is usual){planned}.",
                )  # fmt: skip


def _of_usual_size(report: GradientFlowReport, ratios: dict[str, float]) -> dict[str, float]:
    """Update ratios in which weights that started next to 0, as class tokens do, count as if they were as large as the largest."""
    sizes = {name: report.parameters[name].weight_rms or 0.0 for name in ratios}
    usual = max(sizes.values())
    small = {name for name in ratios if report.setups[name].starts_at_zero and sizes[name] < usual}
    return {name: ratio * sizes[name] / usual if name in small else ratio for name, ratio in ratios.items()}


class UpdateTooLarge(Rule, kind="update_too_large"):
    """Weights that one step almost replaces.

    SageMaker's rule asks for a ratio of 10.

    Attributes:
        threshold: Mean ratio of update to weight above which it counts. Adam's first steps from a small initialisation reach 0.2 in
            healthy runs. A weight that starts at zero is not judged in the first epoch in which it changes.
        usual: Median ratio of all weights below which a weight's largest of three or more measured steps is left out, under an
            optimizer whose steps are as large as the gradient: before a batch norm one may make weights so large that all later
            ones are small. In the first window, if the loss falls in it, two measured steps are enough.
        decay: The share of a weight that decoupled weight decay removes at each step, from which on it counts: at 0.01, 100 steps
            leave about a third. A learning rate of 1e-3 and a decay of 0.1 are 1e-4.
    """

    threshold: float = 0.4
    usual: ClassVar[float] = 0.1
    decay: ClassVar[float] = 0.01

    def __call__(self, report: GradientFlowReport) -> Alerts:
        decays = {name: setup.decay for setup in report.setups.values() for name in setup.optimizers if setup.decay >= self.decay}
        for optimizer, decay in decays.items():
            yield self.finding(
                report, optimizer, decay, self.decay,
                f"its weight decay removes {percent(decay)} of every weight at each step (learning rate times weight_decay; limit "
                f"{percent(self.decay)}): weights are forgotten faster than they are learned.",
                advice=("Try weight_decay=0.01",),
            )  # fmt: skip
        if only_the_first_step(report):
            return  # an optimizer that solves for its step, as LBFGS does, makes a large first one
        grown = {name for earlier in report.earlier for name in weight_ratios(earlier)}
        falls = loss_falls(report)  # LBFGS, one step of which is a search of up to 20, goes along a direction that it has tried
        ratios = {
            name: ratio
            for name, ratio in weight_ratios(report).items()
            if (name in grown or not report.setups[name].starts_at_zero)
            and not (falls and any("lbfgs" in one.lower() for one in report.setups[name].optimizers))
        }
        usual = statistics.median(ratios.values() or [0.0])
        starts_well = not report.earlier and falls_within(report)
        if usual < self.usual or starts_well:
            ratios = {name: _without_largest(report, name, ratio, 3 - starts_well) for name, ratio in ratios.items()}
        for name in sorted((name for name, ratio in ratios.items() if ratio > self.threshold), key=lambda name: -ratios[name]):
            yield self.finding(
                report, name, ratios[name], self.threshold,
                f"a step changes it by {percent(ratios[name])} of its size (limit {percent(self.threshold)}; the median of all "
                f"weights is {percent(usual)}, and about 0.1% is usual): what it has learned is overwritten.",
            )  # fmt: skip


def _without_largest(report: GradientFlowReport, name: str, ratio: float, least: int) -> float:
    """A mean update ratio without that of the largest of so many measured steps or more, where the gradient makes it large."""
    stats = report.parameters[name]
    largest = stats.update_ratio_max
    if largest is None or stats.steps < least or any(map(is_scale_free, report.setups[name].optimizers)):
        return ratio
    return max((ratio * stats.steps - largest) / (stats.steps - 1), 0.0)


class UpdateSpike(Rule, kind="update_spike"):
    """One step that changes a weight far more than all others do, although its learning rate has not risen.

    A weight is compared with its own past, as spikes of the loss are (OLMo's and PaLM's practice is to skip such a step).

    Attributes:
        factor: How many times the usual update ratio counts: the largest mean of the last windows and of this window's others.
    """

    factor: float = 20.0
    peak: ClassVar[float] = 3.0  # how many times the largest single update ratio of the last windows it must be as well
    least: ClassVar[float] = 0.1  # update ratio below which it is harmless
    rise: ClassVar[float] = 1.2  # how many times the learning rate of earlier windows explains a larger update

    def __call__(self, report: GradientFlowReport) -> Alerts:
        tops = {name: report.parameters[name].update_ratio_max or 0.0 for name in weight_ratios(report)}
        for name in sorted(tops, key=lambda name: -tops[name]):
            usual = self._usual(report, name)
            limit = max(self.factor * usual, self.least)
            if tops[name] > limit:
                yield self.finding(
                    report, name, tops[name], limit,
                    f"one step changed it by {percent(tops[name])} of its size; {percent(usual)} is usual for it (limit "
                    f"{percent(limit)}), and its learning rate has not risen.",
                )  # fmt: skip

    def _usual(self, report: GradientFlowReport, name: str) -> float:
        """The usual update ratio of a weight; infinite where it is not known, or where its largest one is explained."""
        stats, rate = report.parameters[name], report.setups[name].lr
        past = [earlier for earlier in report.earlier[-3:] if name in earlier.parameters and name in earlier.setups]
        known = [earlier.parameters[name] for earlier in past if earlier.parameters[name].update_ratio is not None]
        top, before = stats.update_ratio_max or 0.0, max((entry.update_ratio_max or 0.0 for entry in known), default=0.0)
        fastest = max((earlier.setups[name].lr or 0.0 for earlier in past), default=0.0)
        if rate is None or len(known) < 2 or top <= self.peak * before or rate > self.rise * fastest:
            return math.inf
        others = (stats.steps > 1) * ((stats.update_ratio or 0.0) * stats.steps - top) / max(stats.steps - 1, 1)
        return max(*(entry.update_ratio or 0.0 for entry in known), others)


__all__ = ["UpdateSpike", "UpdateTooLarge", "UpdateTooSmall"]

KINDS = (
    Kind(
        "update_too_small", "Updates too small to learn from", group="Updates",
        states="symptom", limit=UpdateTooSmall().threshold,
        causes=(wiring.idle_step, code.NEVER_ZEROED, code.written_back, wiring.cut_gradients, *steps.SMALL_STEPS),
        meaning="The optimizer's steps change none of its weights by a noticeable share of their size, although there is a "
        "gradient.",
        formula="update_ratio = |update| / |weight|, mean over the measured steps;\n"
        "               of a weight that started next to 0, |update| / the size of the optimizer's largest weight\n\n"
        "alert if update_ratio < {UpdateTooSmall.threshold} for every weight of an optimizer\n"
        "      or < {UpdateTooSmall.slow}, and < {UpdateTooSmall.planned} / planned steps of the whole training, of "
        "{UpdateTooSmall.min_planned} or more,\n"
        "         unless the last losses of the window are below {UpdateTooSmall.falls} of the first\n"
        "not while the learning rate is below {UpdateTooSmall.scheduled} of its peak",
        advice=("Raise the learning rate", "Find out why the gradients are so small"),
    ),
    Kind(
        "update_too_large", "Updates as large as the weights", group="Updates",
        states="symptom", limit=UpdateTooLarge().threshold,
        causes=steps.STEP_SIZE,
        meaning="One step changes a weight by a large share of its size, or weight decay removes too much of every weight at each "
        "step. What the model learned is overwritten.",
        formula="update_ratio = |update| / |weight|, mean over the measured steps; without the largest of three or more\n"
        "               under an optimizer like SGD where the median of all weights is below {UpdateTooLarge.usual};\n"
        "               of two or more in the first window, if the loss falls in it\n\n"
        "alert if update_ratio > {UpdateTooLarge.threshold} (under LBFGS only where the loss does not fall)\n"
        "      or learning rate * weight_decay (decoupled) >= {UpdateTooLarge.decay}",
        advice=("Try a lower learning rate, a warm-up, or less weight decay",
            "Check its parameter group if only this weight is named"),
    ),
    Kind(
        "update_spike", "An update much larger than usual", group="Updates", states="symptom", about="batch",
        causes=(code.bad_batch, *steps.LARGE_STEP),
        meaning="One step changed a weight far more than the steps before it did, and its learning rate had not risen. What the "
        "model has learned may be lost in that step.",
        formula="usual = the largest of: mean update_ratio of the last windows, mean of this window's other steps\n\n"
        "alert if update_ratio_max > {UpdateSpike.factor} * usual, and > {UpdateSpike.least}\n"
        "      and > {UpdateSpike.peak} * the largest update_ratio_max of the last windows",
        advice=("Check the data of this window",),
    ),
)  # fmt: skip
