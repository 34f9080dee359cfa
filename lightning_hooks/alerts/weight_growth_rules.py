"""Weights that grow fast, or that grow while the loss rises."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from lightning_hooks.alerts.links import always
from lightning_hooks.alerts.loss_rules import rises
from lightning_hooks.alerts.past import takes_many_steps
from lightning_hooks.alerts.rule import Rule
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Kind
from lightning_hooks.reports.windows import GradientFlowReport


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


__all__ = ["GrowthWithoutGain", "WeightsGrowing"]

KINDS = (
    Kind(
        name="weights_growing",
        title="Weights that grow fast",
        group="Updates",
        meaning=(
            "The norm of a weight doubled within one window, faster than in the window before, or keeps growing by the same "
            "factor from window to window while the loss rises. Training that goes on like this diverges."
        ),
        formula=(
            "alert if weight_norm > {WeightsGrowing.factor} * that of the window before, growing no more slowly than before,\n"
            "      after {WeightsGrowing.min_windows} windows\n"
            "      or weight_norm > {GrowthWithoutGain.factor} * that three windows before, growing no more slowly than before "
            "in each,\n"
            "      while the median of the last 32 losses > its lowest + {GrowthWithoutGain.noise} * standard deviation from "
            "batch to batch"
        ),
        severities="warning",
        advice=("Try a lower learning rate", "Add weight decay, or a normalisation layer"),
        rank=730,
        follows={"update_spike": always, "update_too_large": always},
    ),
)

RULES = (WeightsGrowing(), GrowthWithoutGain())
