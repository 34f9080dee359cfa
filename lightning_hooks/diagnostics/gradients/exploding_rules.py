"""Gradients that explode in the backward pass, or inside a module; over the steps: ``clipping_events/rules.py``."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from itertools import accumulate, pairwise
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule
from lightning_hooks.diagnostics.causes import code, data, steps, weights
from lightning_hooks.diagnostics.reports import GradientFlowReport, is_free_of_scale

HUGE = 1e3  # the default of `Exploding.absolute`


class GradientCourse:
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


class Exploding(Rule, kind="exploding"):
    """Gradients that grow in the backward pass, or are very large everywhere.

    Very large is in the units of the loss: it is no alert where the step of every optimizer is independent of the gradient's
    scale, as Adam's, and the loss falls, unless ``absolute`` differs from the default: a limit of the user's always applies. The
    alert's site is the module through which most of the growth happens; where it is gradual, the one nearest the loss with too
    large a gradient.

    Attributes:
        relative: RMS over that near the loss (the largest among the last eighth of the modules) above which a gradient explodes,
            provided that every module before it exceeds at least a hundredth of that.
        absolute: An RMS, of a module's or a parameter's gradient, above which it explodes whatever the others are
            (1e3 in the hook literature and NeuralDBG).
    """

    relative: float = 1e4
    absolute: float = HUGE

    def __call__(self, report: GradientFlowReport) -> Alerts:
        exempt = self.absolute == HUGE and is_free_of_scale(report)
        flow = GradientCourse(report)
        near_loss = max(flow.rms[-max(1, len(flow.rms) // 8) :], default=0.0)
        limit, least = self.relative * near_loss, list(accumulate(flow.rms, min))
        grown = {
            site: rms for site, rms, low in zip(flow.sites, flow.rms, least, strict=True) if rms > limit and low > 0.01 * limit
        }
        harmless = _reaches_no_weight(report, grown)
        course, shown = "", dict(grown)
        if grown:
            largest = max(map(flow.sites.index, grown), key=flow.norm.__getitem__)
            course, culprit = flow.course(largest, len(flow.sites) - 1)
            if culprit is not None and culprit not in grown:
                shown = {culprit: list(grown.values())[-1], **grown}
        for site, rms in shown.items():
            yield self.finding(
                report, site, rms / near_loss, self.relative,
                f"its gradient grows in the backward pass (RMS {rms:.1e}, {rms / near_loss:.1e} times that near the loss, limit "
                f"{self.relative:.0e}); it grows {course}.",
                conclusive=not harmless,
            )  # fmt: skip
        huge = [(site, rms) for site, rms in zip(flow.sites, flow.rms, strict=True) if site not in grown]
        huge += [(site, stats.rms) for site, stats in report.parameters.items()]
        for site, rms in [(site, rms) for site, rms in huge if rms > self.absolute and not exempt]:
            yield self.finding(
                report, site, rms, self.absolute,
                f"its gradient is very large (RMS {rms:.1e}, limit {self.absolute:.0e}): weights may become NaN.",
            )  # fmt: skip


LEAST = 1e-3  # RMS of a weight's gradient over that at its module's output, below which the output's does not reach it


def _reaches_no_weight(report: GradientFlowReport, sites: Collection[str]) -> bool:
    """Whether nothing of the gradients at these modules reaches their weights, as that of an embedding's padding does not."""
    modules = {name: name.rpartition(".")[0] for name in report.parameters}
    pairs = [(stats.rms, report.modules[modules[name]].rms) for name, stats in report.parameters.items() if modules[name] in sites]
    return bool(pairs) and all(weight < LEAST * output for weight, output in pairs)


class Stretching(Rule, kind="exploding"):
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

    threshold: float = 300.0
    scale_free: ClassVar[float] = 10.0
    inside: ClassVar[float] = 1e10

    def __call__(self, report: GradientFlowReport) -> Alerts:
        flow = GradientCourse(report)
        threshold = self.threshold * self.scale_free ** is_free_of_scale(report)
        largest_from = list(accumulate(reversed(flow.norm), max))[::-1]
        for site, norm, arriving in zip(flow.sites[1:], flow.norm, largest_from[1:], strict=False):
            if norm > threshold * arriving:
                before = [name for name, known in zip(flow.sites, flow.norm, strict=True) if known > threshold * arriving]
                yield self.finding(
                    report, site, norm / arriving, threshold,
                    f"the gradient norm grows by a factor of {norm / arriving:.3g} in the backward pass through it (limit "
                    f"{threshold:.3g}), from {arriving:.1e} to {norm:.1e}.",
                    conclusive=not _reaches_no_weight(report, before),
                )  # fmt: skip
        for site, stats in report.parameters.items():
            output = report.modules.get(site.rpartition(".")[0])
            if output is not None and stats.rms > self.inside * output.rms > 0:
                growth = stats.rms / output.rms
                yield self.finding(
                    report, site, growth, self.inside,
                    f"its gradient (RMS {stats.rms:.1e}) is {growth:.1e} times that at the output of its module (limit "
                    f"{self.inside:.0e}): it grows inside.",
                )  # fmt: skip


__all__ = ["Exploding", "Stretching"]

KINDS = (
    Kind(
        "exploding", "Exploding gradients", group="Backward", states="symptom", limit=Exploding().absolute,
        causes=(
            weights.stretching_start, weights.initial_scale, weights.large_start, *steps.LARGE_STEP, code.bad_batch,
            data.constant_data, data.placeholder, data.large_inputs, weights.stretching_recurrence, data.large_targets,
        ),
        meaning="The gradient grows on its way back, is huge everywhere, or has grown since training began. Steps become wild and "
        "weights may end as NaN.",
        formula="g = rms of the gradient at the module's output;  n = its norm;  near = max(g) over the last eighth of the "
        "modules\n\n"
        "alert if g > {Exploding.relative} * near, and at least a hundredth of that at every module before\n"
        "      or g > {Exploding.absolute}, also of a parameter's gradient\n"
        "      or n behind a module > {Stretching.threshold} * max(n at later modules)\n"
        "      or rms of a parameter's gradient > {Stretching.inside} * g of its module\n"
        "      or a step's total norm > {Diverging.threshold} * the largest of the first eight steps\n"
        "Where all optimizers are free of the gradient's scale (Adam) and the loss falls, the second line does not apply and\n"
        "the third is {Stretching.scale_free} times less strict.",
        inconclusive="where nothing of it reaches a weight",
        advice=("Try a lower learning rate", "Use a smaller initialisation or normalisation layers"),
    ),
)  # fmt: skip
