"""Rules over what the optimizers do to the parameters: too little, too much, or nothing because none holds them."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.feature_rules import only_the_first_step
from lightning_hooks.alerts.past import falls_within, has_converged, is_scale_free, loss_falls, takes_many_steps
from lightning_hooks.alerts.rule import Judges, Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.setups import ParameterSetup
from lightning_hooks.reports.windows import GradientFlowReport
from lightning_hooks.statistics.gradients import UPDATE_SAMPLE


def weight_ratios(report: GradientFlowReport) -> dict[str, float]:
    """Of the weights (two dimensions or more) that were updated, the measured update ratios.

    Biases and scales are left out, of any shape: what starts at 0 grows by any factor.
    """
    return {
        name: stats.update_ratio
        for name, stats in report.parameters.items()
        if stats.update_ratio is not None and name in report.setups and report.setups[name].dimensions > 1 and not _is_bias(name)
    }


def _is_bias(parameter: str) -> bool:
    return parameter.rpartition(".")[2] == "bias"


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTooSmall(Rule):
    """Updates so small that nothing is learned, although there is a gradient.

    SageMaker's rule asks for less than 1e-8, which is below the rounding of a float32 weight and too late. Where it is known how
    many steps are planned, larger updates count too: those that all steps together cannot make into a change of a weight, unless
    the loss falls all the same. It is no alert where training has converged (its gradient is small against that of the first
    epoch), where the schedule has a low learning rate at the moment, or of the first step alone: a warm-up may start from 0.

    Attributes:
        threshold: Ratio of update to weight, of every weight of an optimizer, below which it counts.
        slow: The same where the sum over all planned steps is below ``planned``.
        planned: Change over its size that no weight reaches, if all planned steps went in one direction.
        min_planned: Fewer planned steps are a trial, which need not learn anything.
        falls: Share of a window's first losses below which its last ones have fallen.
        scheduled: Share of its peak below which a learning rate is low on purpose.
        converged: Share of the first epoch's total gradient norm below which training has converged.
    """

    kind: ClassVar[str] = "update_too_small"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("falls", "scheduled", "converged")

    threshold: float = 1e-6
    slow: float = 1e-4
    planned: float = 1e-2
    min_planned: int = 64
    falls: float = 0.9
    scheduled: float = 0.5
    converged: float = 1e-2

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per optimizer none of whose weights moves."""
        if only_the_first_step(report) or has_converged(report, history, self.converged):
            return
        steps = report.planned_steps or 0
        few = steps < self.min_planned or falls_within(report, self.falls)
        limit = self.threshold if few else max(self.threshold, min(self.slow, self.planned / steps))
        by_optimizer: dict[str, dict[str, float]] = {}
        for name, ratio in weight_ratios(report).items():
            setup = report.setups[name]
            if setup.lr and setup.lr_peak is not None and setup.lr >= self.scheduled * setup.lr_peak:  # a rate of 0 is meant
                for optimizer in setup.optimizers:
                    by_optimizer.setdefault(optimizer, {})[name] = ratio
        for optimizer, all_ratios in by_optimizer.items():
            ratios = _of_usual_size(report, all_ratios)
            largest = max(ratios, key=ratios.__getitem__)
            if ratios[largest] < limit:
                rate = report.setups[largest].lr
                planned = f", and the {steps} planned steps by less than {percent(self.planned)}" if limit > self.threshold else ""
                yield self.alert(
                    report, optimizer, ratios[largest], limit, "warning",
                    f"a step changes none of its weights by more than {ratios[largest]:.1e} of their size ({largest}; limit "
                    f"{limit:.0e}){planned}.",
                    "About 1e-3 is usual, and below 6e-8 a float32 weight does not change at all. The learning rate is "
                    f"{rate:.1e}.",
                )  # fmt: skip


def _of_usual_size(report: GradientFlowReport, ratios: dict[str, float]) -> dict[str, float]:
    """Update ratios in which weights that started next to 0, as class tokens do, count as if they were as large as the largest."""
    sizes = {name: report.parameters[name].weight_rms or 0.0 for name in ratios}
    usual = max(sizes.values())
    small = {name for name in ratios if report.setups[name].starts_at_zero and sizes[name] < usual}
    return {name: ratio * sizes[name] / usual if name in small else ratio for name, ratio in ratios.items()}


@dataclass(frozen=True, slots=True, eq=False)
class NotUpdated(Rule):
    """Weights that do not change although they have a gradient, while others do.

    Frozen weights, those with a learning rate of 0 and those whose step would be lost in rounding do not count, nor does a
    training without any change, which is :class:`UpdateTooSmall`'s. Of a large weight a sample of the elements is compared; it is
    judged only where its gradient is not sparse.

    Attributes:
        min_steps: Measured optimizer steps below which a window is not judged.
        min_steps_of_all: The same where none of an optimizer's weights moves, in this window and the one before: it may take its
            steps together every few calls.
        sparse: Share of zeros in the gradient of a large weight above which updates of other elements could have been missed.
        rounding: A step below this is lost in the rounding of a float32 weight of about 1 (2 ** -24).
    """

    kind: ClassVar[str] = "not_updated"
    shares: ClassVar[tuple[str, ...]] = ("sparse",)

    min_steps: int = 3
    min_steps_of_all: int = 5
    sparse: float = 0.9
    rounding: float = 6e-8

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per weight, or per module none of whose weights moves."""
        moves = _moving_weights(report)
        moving = {held for name, moved in moves.items() if moved for held in report.setups[name].optimizers}
        before = [(earlier, _moving_weights(earlier)) for earlier in history[-1:]]
        still = {name for name, moved in moves.items() if moving and not moved and self._could_move(report, name)}
        for name in [name for name in still if not moving.issuperset(report.setups[name].optimizers)]:
            steps = sum(earlier.parameters[name].steps for earlier, then in before if then.get(name) is False)
            if report.parameters[name].steps + steps < self.min_steps_of_all:
                still.discard(name)
        for site, names in _by_module([name for name in moves if name in still], moves).items():
            stats, setup = report.parameters[names[0]], report.setups[names[0]]
            which = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more of its weights"
            whose = f"of {setup.optimizers[0]}" if setup.optimizers[0] in moving else f"(of {', '.join(sorted(moving))})"
            yield self.alert(
                report, site, 0.0, 0.0, "warning",
                f"{which} did not change in {stats.steps} measured steps, while other weights {whose} did, although it has a "
                f"gradient (norm {stats.norm:.2g}) and a learning rate of {setup.lr or 0.0:.2g}.",
                "Common causes: code that restores the weights after the step, or a step that is smaller than their rounding.",
            )  # fmt: skip

    def _could_move(self, report: GradientFlowReport, name: str) -> bool:
        stats, setup = report.parameters[name], report.setups[name]
        if not (setup.trains and setup.lr and setup.optimizers and stats.norm > 0 and stats.steps >= self.min_steps):
            return False
        seen_whole = setup.elements <= UPDATE_SAMPLE or stats.zero_fraction <= self.sparse
        step = setup.lr * (1.0 if all(map(is_scale_free, setup.optimizers)) else stats.rms)
        return seen_whole and step > self.rounding


@dataclass(frozen=True, slots=True, eq=False)
class NeverStepped(Rule):
    """Gradients are computed in every batch, and no optimizer takes a step, or one of several takes none.

    One of several may wait for its turn, as the generator does while the discriminator warms up: it must not have taken a step
    in any window so far, though gradients reach modules whose parameters it holds.

    Attributes:
        min_batches: Batches since training started below which it is not judged.
    """

    kind: ClassVar[str] = "not_updated"
    judges: ClassVar[Judges] = "epoch"

    min_batches: int = 20

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert if there are optimizers and gradients, and no steps."""
        batches = sum(window.batches for window in (*history, report))
        held = {name: setup for name, setup in report.setups.items() if setup.optimizers and setup.trains}
        if batches < self.min_batches or not held or not report.modules:
            return
        optimizers = dict.fromkeys(name for setup in held.values() for name in setup.optimizers)
        stepping = {
            name for window in (*history, report) for setup in window.setups.values() if setup.steps for name in setup.optimizers
        }
        still = [name for name in optimizers if name not in stepping]
        of_them = {name.rpartition(".")[0] for name, setup in held.items() if stepping.isdisjoint(setup.optimizers)}
        reached = any(stats.calls and stats.rms > 0 for name, stats in report.modules.items() if name in of_them)
        if still and (reached or not stepping):
            what = "what they hold does not learn" if stepping else "nothing is learned"
            yield self.alert(
                report, still[0], 0.0, 0.0, "warning",
                f"gradients were computed, but {', '.join(still)} took no step in {batches} batches: {what}.",
                "Common causes: manual optimization without optimizer.step(), or an accumulation longer than the epoch.",
                advice=("Call optimizer.step() after manual_backward()",),
            )  # fmt: skip


def _moving_weights(report: GradientFlowReport) -> dict[str, bool]:
    """Of the weights with a measured update, whether it changed them: also of those that are all zeros."""
    found = {name: ratio > 0 for name, ratio in weight_ratios(report).items()}
    weights = {name: report.parameters[name].moved for name, setup in report.setups.items() if _is_weight(report, name, setup)}
    return {**found, **{name: moved for name, moved in weights.items() if moved is not None}}


def _is_weight(report: GradientFlowReport, name: str, setup: ParameterSetup) -> bool:
    return name in report.parameters and setup.dimensions > 1


def _by_module(still: Sequence[str], weights: Collection[str]) -> dict[str, list[str]]:
    """Weights by the outermost module all of whose weights are among them, or each by its own name."""
    found: dict[str, list[str]] = {}
    moving = [name for name in weights if name not in set(still)]
    for name in still:
        outer = [name[:end] for end, letter in enumerate(name) if letter == "."][:-1]
        site = next((module for module in outer if not any(other.startswith(f"{module}.") for other in moving)), name)
        found.setdefault(site, []).append(name)
    return {names[0] if len(names) == 1 else site: names for site, names in found.items()}


@dataclass(frozen=True, slots=True, eq=False)
class UpdateTooLarge(Rule):
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

    kind: ClassVar[str] = "update_too_large"
    shares: ClassVar[tuple[str, ...]] = ("decay",)

    threshold: float = 0.4
    usual: float = 0.1
    decay: float = 0.01

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per weight whose updates are too large, the largest first, and per optimizer that decays too much."""
        decays = {name: setup.decay for setup in report.setups.values() for name in setup.optimizers if setup.decay >= self.decay}
        for optimizer, decay in decays.items():
            yield self.alert(
                report, optimizer, decay, self.decay, "warning",
                f"its weight decay removes {percent(decay)} of every weight at each step (learning rate times weight_decay; limit "
                f"{percent(self.decay)}): weights are forgotten faster than they are learned.",
                "Common cause: a weight_decay that was meant for another optimizer or learning rate.",
                advice=("Try weight_decay=0.01",),
            )  # fmt: skip
        if only_the_first_step(report):
            return  # an optimizer that solves for its step, as LBFGS does, makes a large first one
        grown = {name for earlier in history for name in weight_ratios(earlier)}
        ratios = {
            name: ratio for name, ratio in weight_ratios(report).items() if name in grown or not report.setups[name].starts_at_zero
        }
        if loss_falls(report, history):  # a step of theirs is many, along a direction that they have searched
            ratios = {
                name: ratio for name, ratio in ratios.items() if not any(map(takes_many_steps, report.setups[name].optimizers))
            }
        usual = statistics.median(ratios.values()) if ratios else 0.0
        starts_well = not history and falls_within(report)
        if usual < self.usual or starts_well:
            ratios = {name: _without_largest(report, name, ratio, 2 if starts_well else 3) for name, ratio in ratios.items()}
        for name in sorted(ratios, key=lambda name: -ratios[name]):
            if ratios[name] > self.threshold:
                rate = report.setups[name].lr
                yield self.alert(
                    report, name, ratios[name], self.threshold, "warning",
                    f"a step changes it by {percent(ratios[name])} of its size (limit {percent(self.threshold)}; the median of all "
                    f"weights is {percent(usual)}, and about 0.1% is usual): what it has learned is overwritten.",
                    f"Its learning rate is {rate or 0.0:.2g}.",
                )  # fmt: skip


def _without_largest(report: GradientFlowReport, name: str, ratio: float, least: int) -> float:
    """A mean update ratio without that of the largest of so many measured steps or more, where the gradient makes it large."""
    stats = report.parameters[name]
    largest = stats.update_ratio_max
    if largest is None or stats.steps < least or any(map(is_scale_free, report.setups[name].optimizers)):
        return ratio
    return max((ratio * stats.steps - largest) / (stats.steps - 1), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class NotOptimized(Rule):
    """Parameters that get a gradient and that no optimizer holds, optimizers of frozen parameters only, and no optimizer at all.

    Attributes:
        most: Share of the elements that require a gradient from which on the diagnosis adds how many no optimizer holds.
    """

    kind: ClassVar[str] = "not_optimized"
    shares: ClassVar[tuple[str, ...]] = ("most",)

    most: float = 0.5

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield a warning per parameter that has a gradient, an info per one that only requires it."""
        held: dict[str, list[str]] = {}
        for name, setup in report.setups.items():
            for optimizer in setup.optimizers:
                held.setdefault(optimizer, []).append(name)
        # Lightning's stand-in for no optimizer has no learning rate.
        others = [name for name, stats in report.optimizers.items() if any(group.lr for group in stats.groups)]
        if report.setups and not held and others:
            yield self.alert(
                report, "the model", float(len(others)), 0.0, "warning",
                f"none of its parameters is held by an optimizer: what {', '.join(others)} holds is not this model's.",
                "Common causes: an optimizer made for a copy of the model, or before its layers were replaced.",
                advice=("Create the optimizer from self.parameters() in configure_optimizers",),
            )  # fmt: skip
            return
        if report.setups and not held:
            elements = sum(setup.elements for setup in report.setups.values() if setup.trains)
            yield self.alert(
                report, "the model", float(elements), 0.0, "info",
                "there is no optimizer: parameters change only where your own code changes them, and update ratios and clipping "
                "are not measured.",
                advice=("Return an optimizer from configure_optimizers to have them measured",),
            )  # fmt: skip
            return
        for optimizer, names in held.items():
            if not any(report.setups[name].trains or had_gradient(report, name) for name in names):
                yield self.alert(
                    report, optimizer, float(len(names)), 0.0, "warning",
                    f"all {len(names)} of its parameters are frozen (requires_grad is False): its steps change nothing.",
                    "Common causes: a layer that was frozen after the optimizer was created, or the wrong part of the model "
                    "passed to it.",
                    advice=("Unfreeze what it holds, or give it the parameters that train",),
                )  # fmt: skip
        left_out = {name: setup for name, setup in report.setups.items() if setup.trains and not setup.optimizers}
        total = sum(setup.elements for setup in report.setups.values() if setup.trains)
        share = sum(setup.elements for setup in left_out.values() if setup.has_gradient) / max(total, 1)
        most = f" So {percent(share)} of what trains is in no optimizer." if share >= self.most else ""
        for name, setup in left_out.items():
            yield self.alert(
                report, name, float(setup.elements), 0.0, "warning" if setup.has_gradient else "info",
                "it requires a gradient, but no optimizer holds it: it does not change.",
                "Common causes: configure_optimizers that passes only a part of the parameters, or a layer that was unfrozen "
                f"after the optimizer was created.{most}",
            )  # fmt: skip


def had_gradient(report: GradientFlowReport, parameter: str) -> bool:
    """Whether a parameter had a gradient at some step: one that is frozen at the epoch's end may train in turn with others."""
    return parameter in report.parameters and report.parameters[parameter].steps > 0
