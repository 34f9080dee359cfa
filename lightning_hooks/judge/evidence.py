"""What speaks for and against a problem: of which class it is, how large, whether a cause is known, how the loss goes."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import KINDS, kind_of
from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.window import Window, place_of
from lightning_hooks.diagnostics.loss.report import fallen, falls
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.hooks.selection import outwards
from lightning_hooks.judge.weights import probability

WHOLE = 0.999  # a share from which on it is all
GOES_WELL = 0.9  # the last losses over those at the start, below which the loss falls
# How many times its limit a value is, or the limit the value, below which it is near it, and above which it is far from it
NEAR, FAR = 1.5, 10.0
LIKELY = 0.8  # the probability from which on a cause is more than one of two
POSSIBLE = 0.5  # the probability below which a problem is shown in the report only

# Share of the fall over share of the parameters between which weights bring what is usual: four fifths of healthy layers do
LEAST, MOST = 0.1, 10.0
LEAST_BEFORE = 0.05  # the same, of the median module up to there: below it, gradients hardly reach the first modules
# The loss over that at the start, below which the training goes well, if it is also below this share of the best constant's
FALLEN = 0.6
SOLVED = 0.05  # the same, below which nothing that a symptom costs is worth an alarm, wherever it is; both must be known
PART = 0.9  # share of the parameters above which weights are the model's
SHORT = 0.1  # median step ratio below which steps are too long, where it is measured


class Effects:
    """What the weights at a site bring to the fall of the loss: evidence of whether a symptom there does harm.

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
        # By the name of each module, those of its modules that hold parameters, itself too; without the root, but for its own ones.
        self._within = grouped((module, name) for name in self._modules for module in outwards(name)[:-1] or [name])
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

    def weights_at(self, site: str) -> tuple[list[str], int]:
        """The modules with the weights at a module, a functional call or a parameter, and how many modules there are up to it.

        A call has no weights of its own: those before it count. No module where that is not known.
        """
        own = site.rpartition(".")[0] if site in self._report.setups else site.partition("/")[0]
        is_call = own != site and site in self._places
        place = place_of(site if is_call else own, self._places)
        before = 0 if place == math.inf else bisect.bisect_right(self._places_of, place)
        chosen = (None if is_call else self._within.get(own)) or self._ordered[:before][-1:]
        return (chosen, before) if before else ([], 0)

    def harmless(self, site: str) -> bool:
        """Whether the training goes well, at a site too. A loss that falls alone is no evidence of it."""
        (chosen, before), learning, fell = self.weights_at(site), self._report.learning, fallen(self._report.loss)
        if learning is None or not chosen:
            return False
        share = sum(self._modules[name][0] for name in chosen)
        size = sum(self._modules[name][1] for name in chosen) / self._total
        usual = LEAST <= share / size <= MOST and self._densities[before] >= LEAST_BEFORE and size <= PART
        better = learning.over_constant is None or learning.over_constant <= FALLEN
        steps = learning.step_ratio is None or learning.step_ratio >= SHORT
        return usual and fell is not None and fell <= FALLEN and better and steps


class Judge:
    """Says how probable each problem of a window is."""

    def __init__(self, window: Window) -> None:
        self._window = window

    @cached_property
    def _flow(self) -> GradientFlowReport | None:
        return self._window.report(GradientFlowReport)

    @cached_property
    def _effects(self) -> Effects | None:
        return None if self._flow is None else Effects(self._flow, self._window.places)

    @cached_property
    def _falls(self) -> bool:
        return self._flow is not None and falls(self._flow.loss, GOES_WELL)

    def judged(self, alert: Alert, least: float) -> Alert:
        """A problem with its probability. One of a kind of the user's own stays as it is.

        Args:
            alert: The one that stands for it.
            least: The probability from which on it is more than an info.
        """
        if alert.kind not in KINDS or alert.severity == "info":
            return alert
        evidence = tuple(self.evidence(alert))
        found = round(probability(evidence), 3)
        severity = alert.severity if found >= least else "info"
        return dataclasses.replace(alert, probability=found, evidence=evidence, severity=severity)

    def evidence(self, alert: Alert) -> list[str]:
        """What holds of a problem, by name."""
        kind = kind_of(alert.kind)
        cause = next((cause for cause in alert.causes if cause.decisive), None)
        found = [kind.states, f"kind {kind.name}", *([] if cause is None else [f"cause {cause.name}"])]
        if kind.states == "fact":
            return found
        found.append(f"{kind.states}, cause {'unknown' if cause is None else 'known'}")
        found += [f"{kind.states}, cause likely"] if cause is not None and cause.probability >= LIKELY else []
        found.append(f"{kind.states}, loss {'falls' if self._falls else 'stands'}")
        found.append(_size(alert, kind.measures))
        return [*found, "goes well"] if kind.states == "symptom" and self._goes_well(alert.site) else found

    def _goes_well(self, site: str) -> bool:
        effects = self._effects
        return effects is not None and (effects.solved or effects.harmless(site))


def _size(alert: Alert, measures: str) -> str:
    if measures == "share":
        return "all of it" if alert.value >= WHOLE else "a part of it"
    value, limit = abs(alert.value), abs(alert.threshold)
    times = max(value / limit, limit / value) if 0 < value < math.inf and 0 < limit < math.inf else math.inf
    return "near its limit" if times < NEAR else "far over its limit" if times > FAR else "over its limit"
