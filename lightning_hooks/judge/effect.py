"""What the weights at a site bring to the fall of the loss: evidence of whether a symptom there does harm."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass

from lightning_hooks.declare.window import place_of
from lightning_hooks.diagnostics.loss.report import fallen
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.hooks.selection import outwards

LEAST, MOST = 0.1, 10.0
"""Share of the fall over share of the parameters between which weights bring what is usual: four fifths of healthy layers do."""
LEAST_BEFORE = 0.05
"""The same, of the median module up to there: below it, gradients hardly reach the first modules."""
FALLEN = 0.6
"""The loss over that at the start, below which the training goes well, if it is also below this share of the best constant's."""
SOLVED = 0.05
"""The same, below which nothing that a symptom costs is worth an alarm, wherever it is; both must be known."""
PART = 0.9
"""Share of the parameters above which weights are the model's."""
SHORT = 0.1
"""Median step ratio below which steps are too long, where it is measured."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What the weights at a site bring.

    Attributes:
        weights: The module that holds them: the site's own, else the last one before it.
        share: Their share of the predicted fall of the loss.
        size: Their share of the trained numbers.
        before: The lower median of share over size of the modules up to there.
        fallen: The last losses over those at the start; None where that says nothing.
        over_constant: The loss over that of the best constant answer; None where it is not known.
        step_ratio: As in the report.
    """

    weights: str
    share: float
    size: float
    before: float
    fallen: float | None
    over_constant: float | None
    step_ratio: float | None

    @property
    def harmless(self) -> bool:
        """Whether the training goes well. A loss that falls alone is no evidence of it."""
        usual = LEAST <= self.share / self.size <= MOST and self.before >= LEAST_BEFORE and self.size <= PART
        falls = self.fallen is not None and self.fallen <= FALLEN
        better = self.over_constant is None or self.over_constant <= FALLEN
        return usual and falls and better and (self.step_ratio is None or self.step_ratio >= SHORT)


class Effects:
    """The effects at the sites of a window.

    Args:
        report: What learns, and the loss.
        places: Module names to their places along the forward pass.
    """

    def __init__(self, report: GradientFlowReport, places: Mapping[str, float]) -> None:
        self._report, self._places = report, places
        self._modules: dict[str, tuple[float, int, float]] = {}  # share, elements, place; none where a share is not known
        for name, stats in {} if report.learning is None else report.learning.parameters.items():
            if stats.share is None or name not in report.setups:
                self._modules = {}
                break
            module = name.rpartition(".")[0]
            share, elements, place = self._modules.get(module) or (0.0, 0, place_of(module, places))
            self._modules[module] = share + stats.share, elements + report.setups[name].elements, place
        self._total = sum(elements for _, elements, _ in self._modules.values())
        self._within: dict[str, list[str]] = {}  # by the name of each module, those of its modules that hold parameters, itself too
        for name in self._modules:
            for module in outwards(name)[:-1] or [name]:  # without the root, but for its own parameters
                self._within.setdefault(module, []).append(name)
        self._ordered = sorted(self._modules, key=lambda name: self._modules[name][2])
        self._places_of = [self._modules[name][2] for name in self._ordered]
        self._densities = [math.inf]  # of the modules up to each of them, the median
        so_far: list[float] = []
        for share, elements, _ in map(self._modules.__getitem__, self._ordered):
            if elements >= 1e-3 * self._total:
                bisect.insort(so_far, share * self._total / elements)
            self._densities.append(so_far[(len(so_far) - 1) // 2] if so_far else math.inf)

    @property
    def solved(self) -> bool:
        """Whether there is next to nothing left to learn; False where that is not known."""
        learning, fell = self._report.learning, fallen(self._report.loss)
        constant = None if learning is None else learning.over_constant
        return constant is not None and constant <= SOLVED and fell is not None and fell <= SOLVED

    def at(self, site: str) -> Effect | None:
        """The effect at a module, a functional call or a parameter; None where it is not known.

        A call has no weights of its own: those before it count.
        """
        learning, modules = self._report.learning, self._modules
        own = site.rpartition(".")[0] if site in self._report.setups else site.partition("/")[0]
        is_call = own != site and site in self._places
        place = place_of(site if is_call else own, self._places)
        before = 0 if place == math.inf else bisect.bisect_right(self._places_of, place)
        chosen = (None if is_call else self._within.get(own)) or self._ordered[:before][-1:]
        if learning is None or not chosen or not before:
            return None
        return Effect(
            own if len(chosen) > 1 else chosen[0],
            sum(modules[name][0] for name in chosen),
            sum(modules[name][1] for name in chosen) / self._total,
            self._densities[before],
            fallen(self._report.loss),
            learning.over_constant,
            learning.step_ratio,
        )
