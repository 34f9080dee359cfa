"""Rules over how weights change: updates lost in rounding, single updates that are far too large, norms that double."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from lightning_hooks.alerts.loss_rules import rises
from lightning_hooks.alerts.past import has_converged, takes_many_steps
from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.alerts.update_rules import weight_ratios
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import GradientFlowReport


@dataclass(frozen=True, slots=True, eq=False)
class UpdatesLost(Rule):
    """Weights in half precision that hardly any update changes, since it is smaller than their rounding.

    A bfloat16 number has 8 significant bits: a change below 0.2 to 0.4 % of it is lost (Zamirai et al., "Revisiting BFloat16
    Training", 2020). Healthy trainings with such weights lose 50 to 79 % of the updates of single elements at a step, each time of
    others. It is no alert where the schedule has a low learning rate at the moment, or where training has converged.

    Attributes:
        threshold: Share of a weight's elements whose update was lost, above which it counts.
        min_steps: Measured optimizer steps below which a window is not judged.
        scheduled: Share of its peak below which a learning rate is low on purpose.
        converged: Share of the first epoch's total gradient norm below which training has converged.
    """

    kind: ClassVar[str] = "updates_lost"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "scheduled", "converged")

    threshold: float = 0.99
    min_steps: int = 3
    scheduled: float = 0.5
    converged: float = 1e-2

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per weight, the one that loses most first."""
        if has_converged(report, history, self.converged):
            return
        lost = {
            name: stats.lost_fraction
            for name, stats in report.parameters.items()
            if stats.lost_fraction is not None and stats.lost_fraction > self.threshold and stats.steps >= self.min_steps
        }
        for name in sorted(lost, key=lambda name: -lost[name]):
            setup = report.setups.get(name)
            if setup is None or setup.dimensions < 2 or not setup.lr or setup.lr < self.scheduled * (setup.lr_peak or 0.0):
                continue
            yield self.alert(
                report, name, lost[name], self.threshold, "warning",
                f"{percent(lost[name])} of its elements keep their value at a measured step although they have a gradient (limit "
                f"{percent(self.threshold)}; 50 to 80% is usual with such weights).",
                f"Cause: it is in half precision, and the step (learning rate {setup.lr:.1e}) is smaller than the rounding of its "
                "values (about 0.4% in bfloat16).",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class UpdateSpike(Rule):
    """One step that changes a weight far more than all others do, although its learning rate has not risen.

    A weight is compared with its own past, as spikes of the loss are (OLMo's and PaLM's practice is to skip such a step).

    Attributes:
        factor: How many times the usual update ratio counts: the largest mean of the last windows and of this window's others.
        peak: How many times the largest single update ratio of the last windows it must be as well.
        least: Update ratio below which it is harmless.
        rise: How many times the learning rate of earlier windows explains a larger update.
    """

    kind: ClassVar[str] = "update_spike"

    factor: float = 20.0
    peak: float = 3.0
    least: float = 0.1
    rise: float = 1.2

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per weight, the one with the largest update first."""
        if len(history) < 2:
            return
        ratios = weight_ratios(report)
        tops = {name: report.parameters[name].update_ratio_max or 0.0 for name in ratios}
        for name in sorted(ratios, key=lambda name: -tops[name]):
            usual = self._usual(report, history, name)
            if usual is not None and tops[name] > max(self.factor * usual, self.least):
                yield self.alert(
                    report, name, tops[name], self.factor * usual, "warning",
                    f"one step changed it by {percent(tops[name])} of its size; {percent(usual)} is usual for it (limit "
                    f"{self.factor:g} times that), and its learning rate has not risen.",
                    "Common causes: a batch of bad data, a gradient that is not clipped, or code of your own that writes the "
                    "weight.",
                )  # fmt: skip

    def _usual(self, report: GradientFlowReport, history: Sequence[GradientFlowReport], name: str) -> float | None:
        """The usual update ratio of a weight; None where it is not known, or where its largest one is explained."""
        stats, rate = report.parameters[name], report.setups[name].lr
        past = [earlier.parameters[name] for earlier in history[-3:] if name in earlier.parameters]
        rates = [earlier.setups[name].lr or 0.0 for earlier in history[-3:] if name in earlier.setups]
        means = [entry.update_ratio for entry in past if entry.update_ratio is not None]
        top, mean = stats.update_ratio_max, stats.update_ratio
        tops = [entry.update_ratio_max for entry in past if entry.update_ratio_max is not None]
        if top is None or mean is None or len(means) < 2 or not rates or top <= self.peak * max(tops, default=0.0):
            return None
        if rate is None or rate > self.rise * max(rates):
            return None
        others = (mean * stats.steps - top) / (stats.steps - 1) if stats.steps > 1 else 0.0
        return max(*means, others)


@dataclass(frozen=True, slots=True, eq=False)
class WeightsGrowing(Rule):
    """Weights whose norm doubles from one window to the next, no more slowly than before, when the first windows are over.

    A weight that starts at or near zero, biases and scales of norm layers are not judged, nor is a window in which the learning
    rate rises, nor an optimizer each of whose steps is many (LBFGS). (Weights that grow come before the divergence of large
    transformers: Wortsman et al. 2023, arXiv 2309.14322.)

    Attributes:
        factor: Growth of the norm from one window's end to the next, above which it counts.
        min_windows: Earlier reports below which nothing is judged: weights find their size at first.
        rise: How many times the learning rate of the window before explains growth.
        slowing: Share of the growth in the window before below which growth comes to an end by itself.
    """

    kind: ClassVar[str] = "weights_growing"
    shares: ClassVar[tuple[str, ...]] = ("slowing",)

    factor: float = 2.0
    min_windows: int = 3
    rise: float = 1.01
    slowing: float = 0.9

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per weight, the one that grew most first."""
        if len(history) < self.min_windows:
            return
        first, before, last = history[0], history[-2], history[-1]
        found: dict[str, float] = {}
        for name, setup in report.setups.items():
            now, then, earlier, start = (_norm(each, name) for each in (report, last, before, first))
            rates = setup.lr, last.setups[name].lr if name in last.setups else None
            if setup.dimensions < 2 or setup.starts_at_zero or not (start > 0 and earlier > 0 and then >= start / self.factor):
                continue
            if rates[0] is None or rates[1] is None or rates[0] > self.rise * rates[1]:
                continue
            if any(map(takes_many_steps, setup.optimizers)):
                continue
            if now > self.factor * then and now / then > self.slowing * then / earlier:
                found[name] = now / then
        for name in sorted(found, key=lambda name: -found[name]):
            yield self.alert(
                report, name, found[name], self.factor, "warning",
                f"its norm grew {found[name]:.2g} times in this window, from {_norm(last, name):.3g} to {_norm(report, name):.3g} "
                f"(limit {self.factor:g} times; {_norm(last, name) / _norm(before, name):.2g} times in the window before).",
                "Common causes: a learning rate that is too high, a loss that falls as outputs grow, or a weight that nothing "
                "holds back.",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class GrowthWithoutGain(Rule):
    """Weights that grow by the same factor from window to window, or faster, while the loss rises.

    In a training that learns, growth slows down as weights find their size, or the loss falls with it. Neither is so under a
    learning rate that has become too high, or a decay with the wrong sign; the loss is still far from diverging then. A learning
    rate that rises is no excuse, as it is for :class:`WeightsGrowing`: the loss says that it went too far. A weight that starts at
    or near zero, biases and scales of norm layers are not judged.

    Attributes:
        factor: Growth of the norm over three windows, above which it counts.
        slowing: Share of the growth in the window before below which growth slows down.
        noise: Rise of the loss, the median of its last 32 values, above its lowest level, over the noise from batch to batch.
    """

    kind: ClassVar[str] = "weights_growing"
    shares: ClassVar[tuple[str, ...]] = ("slowing",)

    factor: float = 1.25
    slowing: float = 0.8
    noise: float = 0.75

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per weight, the one that grew most first."""
        if len(history) < 3 or report.loss is None or not rises(report.loss, self.noise):
            return
        found: dict[str, float] = {}
        for name, setup in report.setups.items():
            norms = [_norm(each, name) for each in (*history[-3:], report)]
            start = _norm(history[0], name)
            if setup.dimensions < 2 or setup.starts_at_zero or not start > 0 or not min(norms) >= start / 2:
                continue
            rates = [math.log(later / earlier) for earlier, later in pairwise(norms)]
            if norms[-1] > self.factor * norms[0] and all(now > self.slowing * then > 0 for then, now in pairwise(rates)):
                found[name] = norms[-1] / norms[0]
        for name in sorted(found, key=lambda name: -found[name]):
            yield self.alert(
                report, name, found[name], self.factor, "warning",
                f"its norm grew {found[name]:.3g} times over three windows (limit {self.factor:g} times), no more slowly from one "
                f"to the next, and the loss rises: it was {report.loss.lowest:.3g} at its lowest.",
                f"{len(found)} of the weights grow so. Common causes: a learning rate that is too high or grows, or weight decay "
                "with the wrong sign.",
            )  # fmt: skip


def _norm(report: GradientFlowReport, name: str) -> float:
    """The norm of a weight in a report; 0 where it is not known."""
    stats = report.parameters.get(name)
    return 0.0 if stats is None else stats.weight_norm or 0.0
