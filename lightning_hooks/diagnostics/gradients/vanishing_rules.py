"""Gradients that do not arrive: they vanish in the backward pass, are exactly zero, or never come."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent
from lightning_hooks.diagnostics.causes import code, data, rates, weights, wiring
from lightning_hooks.diagnostics.gradients.exploding_rules import GradientCourse
from lightning_hooks.diagnostics.reports import GradientFlowReport, had_gradient, is_scale_free, only_the_first_step, unused_tensors
from lightning_hooks.diagnostics.setup.initial import role_of


class Vanishing(Rule, kind="vanishing"):
    """Gradients that vanish in the backward pass.

    Modules are compared with later ones that hold parameters: through a sigmoid or a decoder without weights, whose output the loss
    takes a logarithm of, a gradient falls by any factor.

    A module counts only if every module before it has lost its gradient too (the queries and keys of a healthy transformer get
    very little, the layers before them much more), and not where later modules of the same role (the name within a block, such
    as ``attention.q_proj``) get as little. The alert's site is the module through which most of the gradient is lost; where it is
    lost gradually, the one nearest the loss that has lost it. The others are consequences. Nor does a module count whose weights
    move by a usual share of their size at each step of an optimizer whose steps are as large as the gradient.

    Attributes:
        relative: RMS, and norm, over the largest among the modules after, below which the gradient has vanished. Healthy networks
            have ratios down to 1e-2.
        absolute: An RMS below which a gradient has vanished whatever the others are: a float32 update hardly carries less.
        alike: RMS over the largest among later modules of the same role, above which it gets as much as they do.
    """

    relative: float = 1e-4
    absolute: float = 1e-12
    alike: ClassVar[float] = 1e-2
    learns: ClassVar[float] = 1e-3  # update ratio from which on a weight learns all the same

    def __call__(self, report: GradientFlowReport) -> Alerts:
        if any(stats.nonfinite_fraction > 0 for stats in report.modules.values()):
            return
        flow, lost = GradientCourse(report), list[tuple[str, float, float, str]]()
        holders = {name.rpartition(".")[0] for name in report.parameters}
        none_holds = holders.isdisjoint(flow.sites)
        counted = [none_holds or site in holders for site in flow.sites]
        after = _maxima_after([rms * counts for rms, counts in zip(flow.rms, counted, strict=True)])
        norm_after = _maxima_after([norm * counts for norm, counts in zip(flow.norm, counted, strict=True)])
        before, norm_before = list(accumulate(flow.rms, max)), list(accumulate(flow.norm, max))
        learning = self._learning(report)
        for place, (site, rms, alike) in enumerate(zip(flow.sites, flow.rms, _largest_alike_after(flow), strict=True)):
            spared = rms > self.alike * alike > self.absolute or site in learning
            arrives = before[place] >= self.relative * after[place] or norm_before[place] >= self.relative * norm_after[place]
            if not arrives and not spared:
                what = f"{rms / after[place]:.1e} times that of a layer after it (limit {self.relative:.0e})"
                lost.append((site, rms / after[place], self.relative, what))
            elif before[place] < self.absolute and not spared:
                lost.append((site, rms, self.absolute, f"below the limit of {self.absolute:.0e}"))
        if not lost:
            return
        frontier = flow.sites.index(lost[-1][0])
        largest = max(range(frontier, len(flow.sites)), key=flow.norm.__getitem__)
        course, culprit = flow.course(min(range(frontier + 1), key=flow.norm.__getitem__), largest)
        if culprit in flow.sites[frontier + 1 :]:
            lost.insert(0, (str(culprit), *lost[-1][1:3], "and almost nothing of it reaches the layers before"))
        falls = f"; it falls {course}" * (largest > frontier)
        for site, value, threshold, what in lost:
            yield self.finding(
                report, site, value, threshold,
                f"the gradient RMS at its output is {report.modules[site].rms:.1e}, {what}{falls}.",
            )  # fmt: skip

    def _learning(self, report: GradientFlowReport) -> set[str]:
        """The modules whose weight moves by a usual share, under optimizers whose steps are as large as the gradient."""
        moving = [name for name, stats in report.parameters.items() if (stats.update_ratio or 0.0) >= self.learns]
        setups = {name: report.setups[name] for name in moving if name in report.setups}
        held = {name: setup.optimizers for name, setup in setups.items() if setup.optimizers and setup.decay < self.learns / 2}
        return {name.removesuffix(".weight") for name, optimizers in held.items() if not any(map(is_scale_free, optimizers))}


def _maxima_after(values: Sequence[float]) -> list[float]:
    """For each place the largest of the values after it; 0 for the last."""
    return list(accumulate(reversed(values[1:]), max, initial=0.0))[::-1]


def _largest_alike_after(flow: GradientCourse) -> list[float]:
    """For each place the largest RMS among the later modules of its role; 0 where it has no role, or none is later."""
    largest: dict[str, float] = {}
    found = []
    for site, rms in zip(flow.sites[::-1], flow.rms[::-1], strict=True):
        role = _role_in_block(site)
        found.append(largest.get(role, 0.0) if role else 0.0)
        largest[role] = max(rms, largest.get(role, 0.0))
    return found[::-1]


def _role_in_block(site: str) -> str:
    """A module's role, with the path to it from its numbered block on: each half of an adapter is called alike (``default``)."""
    role, outer = role_of(site), site.rpartition(".")[0]
    numbers = [match.end() for match in re.finditer(r"(?:^|\.)\d+(?:\.|$)", outer)] if role else ()
    return f"{outer[numbers[-1] :]}.{role}".lstrip(".") if numbers else role


def _unused(report: GradientFlowReport, site: str) -> bool:
    """Whether it is a part of a library's model, or a target network, that may be meant to have no gradient."""
    return site in report.setups and bool(report.setups[site].spare)


class Zero(Rule, kind="zero", judges="epoch", shares=("threshold",)):
    """Gradients that arrive and are exactly zero everywhere.

    A critic in a Wasserstein GAN has a bias without one: its loss is a difference of outputs and does not depend on an offset.
    Queries of a library's last block have none where nothing reads its other outputs.

    Attributes:
        threshold: Share of zero elements over the epoch at or above which it counts, in (0, 1].
        part: Share of what trains that such a part is at most: a larger one is multiplied by zero, or its gates are shut.
    """

    threshold: float = 1.0
    part: ClassVar[float] = 0.5

    def __call__(self, report: GradientFlowReport) -> Alerts:
        zero = [site for site, gradient in report.parameters.items() if gradient.zero_fraction >= self.threshold]
        trains = {name: setup.elements for name, setup in report.setups.items() if setup.trains}
        # Of a library's model, which may leave a part unused, if few of those that train have no gradient.
        few = sum(trains.get(name, 0) for name in zero) <= self.part * max(sum(trains.values()), 1)
        for site in zero if not only_the_first_step(report) else ():
            share = percent(report.parameters[site].zero_fraction)
            yield self.finding(
                report, site, report.parameters[site].zero_fraction, self.threshold,
                f"{share} of its gradient is exactly zero (limit {percent(self.threshold)}): it is connected to the loss but does "
                "not learn.",
                conclusive=not (few and _unused(report, site)) and not _weight_learns(report, site),
            )  # fmt: skip


def _weight_learns(report: GradientFlowReport, site: str) -> bool:
    """Whether a parameter is the bias of a module another parameter of which has a gradient."""
    module, _, name = site.rpartition("bias")
    if name or not module:
        return False
    near = _by_module(tuple(report.parameters))[module.rpartition(".")[0]]
    others = (report.parameters[other] for other in near if other != site and other.startswith(module))
    return any(stats.steps and stats.zero_fraction < 1 for stats in others)


@lru_cache(maxsize=8)
def _by_module(names: tuple[str, ...]) -> dict[str, list[str]]:
    """The parameters in each module."""
    found = grouped((module, name) for name in names for module in accumulate(name.split(".")[:-1], "{}.{}".format))
    return {**found, "": [*names]}


class Missing(Rule, kind="missing", judges="epoch"):
    """Parameters that require gradients and never get one.

    The body of a library's model is no unused part of it: modules that run before all that trains, hold most of the model, and
    whose outputs require a gradient, so that they do not run under ``no_grad``.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        left_out = any(setup.has_gradient and not setup.optimizers for setup in report.setups.values())
        replaced = {*unused_tensors(report)} if left_out else set[str]()  # not_optimized names them, at what they were replaced by
        by_chance = {name for name, setup in report.setups.items() if setup.has_gradient}  # at a step that was not sampled
        missing = [name for name, one in report.parameters.items() if one.missing_steps and not one.steps + one.nonfinite_steps]
        for site in [name for name in missing if name not in replaced and name not in by_chance]:
            last = [f" It last had one in epoch {earlier.epoch}." for earlier in report.earlier if had_gradient(earlier, site)][-1:]
            meant = (not last and _unused(report, site)) or _weight_learns(report, site)
            yield self.finding(
                report, site, report.parameters[site].missing_steps, 0.0,
                "it requires a gradient but had none (None, not zero) at every measured step: the loss does not depend on it."
                f"{''.join(last)}",
                conclusive=not meant,
            )  # fmt: skip


__all__ = ["Missing", "Vanishing", "Zero"]

KINDS = (
    Kind(
        "vanishing", "Vanishing gradients", group="Backward", states="symptom",
        causes=(
            weights.small_start, weights.squashing_chain, data.destroyed_inputs, data.large_inputs, weights.initial_scale,
            weights.constant_weights, weights.offset_bias, weights.module_setting, code.activation_before_loss,
            rates.group_too_fast,
        ),
        meaning="The gradient becomes very small on its way back to the first layers. These layers hardly learn.",
        formula="g = rms of the gradient at the module's output;  n = its norm;  later = modules with parameters nearer to the "
        "loss\n\n"
        "alert if g < {Vanishing.relative} * max(g of later modules), and n < {Vanishing.relative} * max(n of later modules),\n"
        "         here and at every module before\n"
        "      or g < {Vanishing.absolute}, here and at every module before\n"
        "not where g > {Vanishing.alike} * max(g of later modules of the same role), nor where gradients explode or are not "
        "finite,\n"
        "nor where the module's weight moves by at least {Vanishing.learns} of its size at each step of an optimizer like SGD",
        advice=("Try ReLU or GELU", "Use He initialisation", "Add normalisation layers or residual connections"),
    ),
    Kind(
        "zero", "Gradients that are exactly zero", group="Backward", states="symptom", measures="share",
        causes=(
            wiring.flat_outputs, wiring.no_slope, weights.constant_weights, weights.offset_bias, weights.nonfinite_weights,
            data.constant_data,
        ),
        meaning="A parameter's gradient arrives and is exactly 0. The parameter is connected to the loss but does not learn.",
        formula="zero_fraction = elements of the gradient that are exactly 0, over all measured steps\n\n"
        "alert if zero_fraction >= {Zero.threshold}",
        inconclusive="for a bias whose weight learns, and for a small part of a library's model that nothing reads",
        advice=("Check the layers after it: dead units, masks, a multiplication by zero",),
    ),
    Kind(
        "missing", "Parameters without a gradient", group="Backward", states="fact", measures="nothing",
        causes=(wiring.loss_without_graph, wiring.cut_path),
        meaning="A parameter requires a gradient but its `.grad` is None at every measured step. The loss does not depend on it.",
        formula="alert if .grad is None at every measured step of the epoch",
        inconclusive="for a bias whose weight learns, and for a part of a library's model that nothing reads",
        advice=("Use it in forward", "Remove what breaks the path to the loss",
            "Freeze it with requires_grad_(False) if it is not to learn"),
    ),
)  # fmt: skip
