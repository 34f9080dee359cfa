"""Rules over gradient-flow reports. All are on the root mean square per element, so that a layer's size does not matter."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, ClassVar

from lightning_hooks.alerts.past import all_scale_free, falls_within, is_scale_free, loss_falls
from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Severity, advice_for
from lightning_hooks.reports.windows import GradientFlowReport
from lightning_hooks.statistics.initial import role_of

HUGE = 1e3
"""The default of ``Exploding.absolute``."""


def _maxima_after(values: Sequence[float]) -> list[float]:
    """For each place the largest of the values after it; 0 for the last."""
    maxima = list(accumulate(reversed(values[1:]), max, initial=0.0))
    return maxima[::-1]


class _Flow:
    """The gradients at the modules' outputs, along the forward pass.

    Where a gradient is 0 or NaN other rules speak. Both measures are needed: a mean over n positions leaves each a n-th of the
    gradient, and the norm a root of that.
    """

    def __init__(self, report: GradientFlowReport) -> None:
        arrived = [site for site in report.order if site in report.modules]
        self.sites = [site for site in arrived[::-1] or report.modules if report.modules[site].rms > 0]
        found = [report.modules[site] for site in self.sites]
        self.rms = [stats.rms for stats in found]
        self.norm = [stats.rms * math.sqrt(stats.count / stats.calls) for stats in found]

    def course(self, small: int, large: int) -> tuple[str, str | None]:
        """How the norm changes from one module to a later one, in words, and the module that does most of it, if one does.

        Args:
            small: The place of the one module.
            large: That of the other; the gradient comes from the later of the two.
        """
        low, high = sorted((small, large))
        # The largest from the small end on: what a side branch gets, as queries and keys do, is not what passes there.
        norms = self.norm[low : high + 1]
        passing = list(accumulate(norms, max)) if norms[0] <= norms[-1] else list(accumulate(norms[::-1], max))[::-1]
        logs = [math.log(min(norm, sys.float_info.max)) for norm in passing]
        steps = [later - earlier for earlier, later in pairwise(logs)]
        total = sum(steps)
        ends = f"{self.norm[high]:.1e} at {self.sites[high]} to {self.norm[low]:.1e} at {self.sites[low]}"
        place, most = max(enumerate(steps), key=lambda step: step[1] * total, default=(0, 0.0))
        if not total or (len(steps) > 1 and most / total < 0.5):
            factor = math.exp(-total / max(len(steps), 1))
            return f"from a norm of {ends}, gradually (by a factor of {factor:.2g} per module)", None
        culprit = self.sites[low + place + 1]
        return f"from a norm of {ends}, mostly in the backward pass through {culprit}", culprit


def _largest_alike_after(flow: _Flow) -> list[float]:
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

    relative: float = 1e-4
    absolute: float = 1e-12
    alike: float = 1e-2
    learns: float = 1e-3

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert where the gradient is lost, and one per module that has lost it.

        None where gradients explode or are not finite: compared with those any gradient is small.
        """
        if any(stats.nonfinite_fraction > 0 for stats in report.modules.values()) or any(Exploding()(report, history)):
            return
        flow = _Flow(report)
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


@dataclass(frozen=True, slots=True, eq=False)
class Exploding(Rule):
    """Gradients that grow in the backward pass, or are very large everywhere.

    Very large is in the units of the loss: it is no alert where the step of every optimizer is independent of the gradient's
    scale, as Adam's, and the loss falls, unless ``absolute`` differs from the default: a limit of the user's always applies. The
    alert's site is the module through which most of the growth happens; where it is gradual, the one nearest the loss with too
    large a gradient. It is critical unless the loss falls: what learns is not lost.

    Attributes:
        relative: RMS over that near the loss (the largest among the last eighth of the modules) above which a gradient explodes,
            provided that every module before it exceeds at least a hundredth of that.
        absolute: An RMS, of a module's or a parameter's gradient, above which it explodes whatever the others are
            (1e3 in the hook literature and NeuralDBG).
        spares: RMS of a weight's gradient over that at its module's output below which the output's does not reach it: it is an
            info where that is so for all weights where the gradient explodes, as for the padding of an embedding.
    """

    kind: ClassVar[str] = "exploding"

    relative: float = 1e4
    absolute: float = HUGE
    spares: float = 1e-3

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert where the gradient grows, and one per module or parameter whose gradient explodes."""
        exempt = self.absolute == HUGE and all_scale_free(report) and loss_falls(report, history)
        absolute = math.inf if exempt else self.absolute
        flow = _Flow(report)
        near_loss = max(flow.rms[-max(1, len(flow.rms) // 8) :], default=0.0)
        before = math.inf
        grown, huge = [], []
        for place, rms in enumerate(flow.rms):
            before = min(before, rms)
            if rms > self.relative * near_loss and before > 0.01 * self.relative * near_loss:
                grown.append(place)
            elif rms > absolute:
                huge.append(place)
        sites = [(flow.sites[place], flow.rms[place]) for place in grown]
        course = ""
        if grown:
            course, culprit = flow.course(max(grown, key=flow.norm.__getitem__), len(flow.sites) - 1)
            if culprit is not None and flow.sites.index(culprit) not in grown:
                sites.insert(0, (culprit, flow.rms[grown[-1]]))
        spared = self._spares_weights(report, [flow.sites[place] for place in grown])
        learns = loss_falls(report, history) if history else falls_within(report, 0.9, 16)  # more than by chance
        severity: Severity = "info" if spared else "warning" if learns else "critical"
        for site, rms in sites:
            ratio = rms / near_loss
            what = f"grows in the backward pass (RMS {rms:.1e}, {ratio:.1e} times that near the loss, limit {self.relative:.0e})"
            yield self._found(report, site, ratio, self.relative, what, f"It grows {course}. ", severity)
        large = [(flow.sites[place], flow.rms[place]) for place in huge]
        large += [(site, stats.rms) for site, stats in report.parameters.items() if stats.rms > absolute]
        for site, rms in large:  # a warning: it may be in the units of the loss
            what = f"is very large (RMS {rms:.1e}, limit {self.absolute:.0e})"
            yield self._found(report, site, rms, self.absolute, what, "", "warning")

    def _spares_weights(self, report: GradientFlowReport, sites: Sequence[str]) -> bool:
        """Whether nothing of the gradients at these modules reaches their weights, as that of an embedding's padding does not."""
        own = {name: stats.rms for name, stats in report.parameters.items() if name.rpartition(".")[0] in sites}
        return bool(own) and all(rms < self.spares * report.modules[name.rpartition(".")[0]].rms for name, rms in own.items())

    def _found(
        self,
        report: GradientFlowReport,
        site: str,
        value: float,
        threshold: float,
        what: str,
        course: str,
        severity: Severity,
    ) -> Alert:
        start = 0.0 if report.loss is None or course else report.loss.start  # what grows on the way is not the loss's own
        scale = f"The loss started at {start:.1e}, as with targets that are not normalised. " if start > HUGE else ""
        advice = ("Normalise the targets, or divide the loss by their variance",) if scale else ()
        return self.alert(
            report, site, value, threshold, severity,
            f"its gradient {what}: weights may become NaN.",
            f"{course}{scale}Common causes: a learning rate or an initialisation that is too large, or a recurrent network without "
            "clipping.",
            advice=(*advice, *advice_for(self.kind)),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Stretching(Rule):
    """A module through which, or inside which, gradients grow much more than in healthy runs: a recurrent one with large weights.

    Attributes:
        threshold: Norm of the gradient before the module over the largest norm at any module after it (not its neighbour's alone:
            the gradients of queries and keys are thousands of times smaller than those of values). Healthy runs reach 120, at a
            normalisation of small values.
        scale_free: Factor of the threshold where the step of every optimizer is independent of the gradient's scale, as Adam's, and
            the loss falls: a branch of a healthy scVI reaches 330.
        inside: RMS of a parameter's gradient over that at the output of its module above which gradients grow inside the module:
            a recurrent layer that comes first has no gradient before it. A sum over a million positions reaches 1e6.
    """

    kind: ClassVar[str] = "exploding"
    _CAUSES: ClassVar[str] = (
        "Common causes: a recurrent layer whose weights amplify it at each time step, or a division by a very small number."
    )

    threshold: float = 300.0
    scale_free: float = 10.0
    inside: float = 1e10

    advice: ClassVar[tuple[str, ...]] = (
        "Try an orthogonal initialisation of gain 1, or gradient_clip_val=1.0, if it is recurrent",
        "Use a larger eps if it divides",
    )

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per such module, and per parameter of a module inside which they grow, unless they explode over all."""
        if any(Exploding()(report, history)):
            return
        flow = _Flow(report)
        threshold = self.threshold * (self.scale_free if all_scale_free(report) and loss_falls(report, history) else 1.0)
        largest_from = list(accumulate(reversed(flow.norm), max))[::-1]
        for site, norm, arriving in zip(flow.sites[1:], flow.norm, largest_from[1:], strict=False):
            if norm > threshold * arriving:
                yield self.alert(
                    report, site, norm / arriving, threshold, "warning",
                    f"the gradient norm grows by a factor of {norm / arriving:.3g} in the backward pass through it (limit "
                    f"{threshold:.3g}), from {arriving:.1e} to {norm:.1e}.",
                    self._CAUSES,
                )  # fmt: skip
        for site, stats in report.parameters.items():
            output = report.modules.get(site.rpartition(".")[0])
            if output is not None and stats.rms > self.inside * output.rms > 0:
                growth = stats.rms / output.rms
                yield self.alert(
                    report, site, growth, self.inside, "warning",
                    f"its gradient (RMS {stats.rms:.1e}) is {growth:.1e} times that at the output of its module (limit "
                    f"{self.inside:.0e}): it grows inside.",
                    self._CAUSES,
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class NonfiniteGradients(Rule):
    """NaN or infinite gradients at steps that were taken (steps that a loss scaler skipped do not count)."""

    kind: ClassVar[str] = "nonfinite"
    advice: ClassVar[tuple[str, ...]] = (
        "Check the inputs and the loss for such operations and add an eps inside them",
        "Try a lower learning rate",
    )
    urgent: ClassVar[bool] = True

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per module and parameter with such gradients."""
        for site, stats in report.modules.items():
            if stats.nonfinite_fraction > 0:
                batch, what = stats.first_nonfinite_batch, f"{percent(stats.nonfinite_fraction)} of the gradient"
                first = "" if batch is None else f", first in training batch {batch} of the epoch"
                yield self._found(report, site, stats.nonfinite_fraction, what, first, batch=batch)
        for site, gradient in report.parameters.items():
            if gradient.nonfinite_steps:
                steps, since = gradient.nonfinite_steps, gradient.first_nonfinite_step
                first = "" if since is None else f", first at step {since}"
                yield self._found(
                    report, site, steps, f"at {steps} measured step{'s' * (steps > 1)} the gradient", first, since_step=since
                )

    def _found(self, report: GradientFlowReport, site: str, value: float, what: str, first: str, **when: Any) -> Alert:
        return self.alert(
            report, site, value, 0.0, "critical",
            f"{what} is NaN or infinite{first}; one step with such a gradient makes a parameter NaN.",
            "Common causes: a loss or an operation with an invalid argument (log or sqrt of 0, division by 0, overflow), or "
            "weights that have diverged.",
            **when,
        )  # fmt: skip
