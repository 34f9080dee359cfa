"""Gradients that vanish in the backward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar

from lightning_hooks.alerts.exploding_rules import Exploding, GradientCourse
from lightning_hooks.alerts.links import backward, from_first, upstream
from lightning_hooks.alerts.past import is_scale_free
from lightning_hooks.alerts.rule import Rule
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Kind
from lightning_hooks.reports.windows import GradientFlowReport
from lightning_hooks.statistics.initial import role_of


@dataclass(frozen=True, slots=True, eq=False)
class Vanishing(Rule):
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
        learns: Update ratio from which on a weight learns all the same.
    """

    kind: ClassVar[str] = "vanishing"
    superseded_by: ClassVar[tuple[type[Rule], ...]] = (Exploding,)  # compared with what explodes any gradient is small

    relative: float = 1e-4
    absolute: float = 1e-12
    alike: float = 1e-2
    learns: float = 1e-3

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert where the gradient is lost, and one per module that has lost it; none where gradients are not finite."""
        if any(stats.nonfinite_fraction > 0 for stats in report.modules.values()):
            return
        flow = GradientCourse(report)
        holders = {name.rpartition(".")[0] for name in report.parameters}
        counted = [not holders.intersection(flow.sites) or site in holders for site in flow.sites]
        largest_after = _maxima_after([rms * counts for rms, counts in zip(flow.rms, counted, strict=True)])
        largest_norm_after = _maxima_after([norm * counts for norm, counts in zip(flow.norm, counted, strict=True)])
        alike = _largest_alike_after(flow)
        before = norm_before = 0.0
        lost = []
        for place, (rms, norm) in enumerate(zip(flow.rms, flow.norm, strict=True)):
            before, norm_before = max(before, rms), max(norm_before, norm)
            after, norm_after = largest_after[place], largest_norm_after[place]
            if rms > self.alike * alike[place] > self.absolute or self._learns(report, flow.sites[place]):
                continue
            if before < self.relative * after and norm_before < self.relative * norm_after:
                what = f"{rms / after:.1e} times that of a layer after it (limit {self.relative:.0e})"
                lost.append((place, rms / after, self.relative, what))
            elif before < self.absolute:
                lost.append((place, rms, self.absolute, f"below the limit of {self.absolute:.0e}"))
        if not lost:
            return
        frontier, value, threshold, _ = lost[-1]
        largest = max(range(frontier, len(flow.sites)), key=flow.norm.__getitem__)
        course, culprit = flow.course(min(range(frontier + 1), key=flow.norm.__getitem__), largest)
        course = f"It falls {course}. " if largest > frontier else ""
        if culprit is not None and culprit not in flow.sites[: frontier + 1] and course:
            yield self._found(report, culprit, value, threshold, "and almost nothing of it reaches the layers before", course)
        for place, value, threshold, what in lost:
            yield self._found(report, flow.sites[place], value, threshold, what, course)

    def _learns(self, report: GradientFlowReport, site: str) -> bool:
        setup, stats = report.setups.get(f"{site}.weight"), report.parameters.get(f"{site}.weight")
        if setup is None or stats is None or stats.update_ratio is None or any(map(is_scale_free, setup.optimizers)):
            return False
        return bool(setup.optimizers) and setup.decay < self.learns / 2 and stats.update_ratio >= self.learns

    def _found(self, report: GradientFlowReport, site: str, value: float, threshold: float, what: str, course: str) -> Alert:
        return self.alert(
            report, site, value, threshold, "warning",
            f"the gradient RMS at its output is {report.modules[site].rms:.1e}, {what}: it and the layers before hardly learn.",
            f"{course}Common causes: saturating activations (sigmoid, tanh), a small initialisation, or depth without residual "
            "connections.",
        )  # fmt: skip


def _maxima_after(values: Sequence[float]) -> list[float]:
    """For each place the largest of the values after it; 0 for the last."""
    maxima = list(accumulate(reversed(values[1:]), max, initial=0.0))
    return maxima[::-1]


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
    numbers = [match.end() for match in re.finditer(r"(?:^|\.)\d+(?:\.|$)", outer)]
    return f"{outer[numbers[-1] :]}.{role}".lstrip(".") if role and numbers else role


__all__ = ["Vanishing"]

KINDS = (
    Kind(
        name="vanishing",
        title="Vanishing gradients",
        group="Backward",
        meaning="The gradient becomes very small on its way back to the first layers. These layers hardly learn.",
        formula=(
            "g = rms of the gradient at the module's output;  n = its norm;  later = modules with parameters nearer to the loss\n\n"
            "alert if g < {Vanishing.relative} * max(g of later modules), and n < {Vanishing.relative} * max(n of later "
            "modules),\n"
            "         here and at every module before\n"
            "      or g < {Vanishing.absolute}, here and at every module before\n"
            "not where g > {Vanishing.alike} * max(g of later modules of the same role), nor where gradients explode or are not "
            "finite,\n"
            "nor where the module's weight moves by at least {Vanishing.learns} of its size at each step of an optimizer like "
            "SGD"
        ),
        severities="warning",
        advice=("Try ReLU or GELU", "Use He initialisation", "Add normalisation layers or residual connections"),
        rank=1140,
        follows={"dead": upstream, "saturated": upstream},
        spreads=from_first(backward),
        urgency=1,
    ),
)

RULES = (Vanishing(),)
