"""Weights: those that a training starts from, and those that grow fast or while the loss rises."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.links import always
from lightning_hooks.declare.rule import Rule
from lightning_hooks.diagnostics.causes.rates import STEP_SIZE
from lightning_hooks.diagnostics.causes.weights import constant_weights, initial_scale
from lightning_hooks.diagnostics.excuses import takes_many_steps
from lightning_hooks.diagnostics.loss.rules import rises
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.diagnostics.setup.initial import TEXTBOOK, TIME_STEP


@dataclass(frozen=True, slots=True, eq=False)
class PoorInit(Rule):
    """A layer whose initial weights are much larger, or smaller, than those of all layers of the same role.

    SageMaker's rule flags variances that differ by more than a factor of 10 between layers. Healthy models differ by more (GPT-2
    starts the last layer of each residual branch small, T5 its heads large, PPO the head of its policy small), so only layers of
    one role (``FeatureReport.initial_roles``) are compared, and heads have none. A layer counts only if no other of its role is
    close and its own gain is not that of a common initialisation. Where most layers of a model have one small standard deviation,
    whatever their width is, a layer that has it too is none to mend.

    Attributes:
        factor: Gain over the median gain of the layers of its role, or the inverse.
        textbook: Gains of common initialisations: 0.58 is PyTorch's for linear layers, 1 is LeCun's and Glorot's (1998, 2010), 1.4
            is He's (2015), 0.33 to 0.58 that of the first layer of a sine network (Sitzmann et al. 2020) with up to three inputs.
        near: Factor within which another layer is close.
        min_layers: A role with fewer layers is not judged.
        small: Standard deviation up to which layers share one: 0.02 is common.
        same: By how much it may differ, as that of few numbers does.
    """

    kind: ClassVar[str] = "poor_init"

    factor: float = 7.0
    textbook: tuple[float, float] = TEXTBOOK
    near: float = 2.0
    min_layers: int = 3
    small: float = 0.1
    same: float = 0.15

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per layer whose initial weights are unlike the others. Zeros have rules of their own."""
        roles: dict[str, dict[str, float]] = {}
        for site, gain in report.initial_gains.items():
            if 0 < gain < math.inf and site in report.initial_roles:
                roles.setdefault(report.initial_roles[site], {})[site] = gain
        alike = self._of_one_size(report)
        for gains in roles.values():
            if report.epoch == 0 and len(gains) >= self.min_layers:
                yield from self._alone(report, gains, alike)

    def _of_one_size(self, report: FeatureReport) -> set[str]:
        """The layers with the small standard deviation that most share."""
        usual = statistics.median(report.initial_rms.values()) if report.initial_rms else 0.0
        if not 0 < usual <= self.small:
            return set()
        alike = {site for site, rms in report.initial_rms.items() if abs(rms / usual - 1) <= self.same}
        return alike if 2 * len(alike) > len(report.initial_rms) else set()

    def _alone(self, report: FeatureReport, gains: dict[str, float], alike: set[str]) -> Iterator[Alert]:
        usual = statistics.median(gains.values())
        for site, gain in ((site, gain) for site, gain in gains.items() if site not in alike):
            ratio = max(gain / usual, usual / gain)
            alone = not any(1 / self.near < other / gain < self.near for name, other in gains.items() if name != site)
            low, high = self.textbook
            if ratio > self.factor and alone and not low <= gain <= high:
                size = f"{gain / usual:.3g} times" if gain > usual else f"1/{usual / gain:.3g} of"
                yield self.alert(
                    report, site, gain / usual, self.factor, "warning",
                    f"its initial weights are {size} the size of those of the layers of the same role (gain {gain:.3g}, median "
                    f"{usual:.3g}, limit: a factor of {self.factor:.3g}), and none of these is close: signals grow or shrink by "
                    "this factor.",
                    "Common causes: an initialisation that was scaled by mistake or made for another fan-in.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ConstantWeights(Rule):
    """Layers that start with one number, other than 0, in all their weights.

    All outputs of such a layer are the same, and if the next layer's weights are one number too they get the same gradient: they
    stay the same (Goodfellow et al. 2016, "Deep Learning", section 8.4, on breaking symmetry). A single such layer, as some heads
    are, is harmless: the layers around it give its outputs different gradients. Zeros have rules of their own.

    The time-step bias of a state-space layer is drawn so that each head has another time scale (Dao and Gu 2024, arXiv 2405.21060,
    0.001 to 0.1 steps); one number for all of them is what is left where that initialisation was skipped.

    Attributes:
        layers: Layers that must start so.
    """

    kind: ClassVar[str] = "poor_init"

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first of such layers."""
        if report.epoch > 0:
            return
        found = report.model_setup.constant_weights
        yield from self._time_steps(report, [name for name in found if name.endswith(TIME_STEP)])
        constant = {name: value for name, value in found.items() if not name.endswith(TIME_STEP)}
        if len(constant) < self.layers:
            return
        (site, value), *others = constant.items()
        more = ", …" * (len(others) > 2)
        yield self.alert(
            report, site, float(len(constant)), float(self.layers), "warning",
            f"all its initial weights are {value:.3g}, and those of {', '.join(name for name, _ in others[:2])}{more} are one "
            f"number too ({len(constant)} layers, limit {self.layers}): their outputs are all the same, get the same gradient and "
            "stay the same.",
            "Common cause: nn.init.constant_ or ones_ on weights.",
            advice=("Initialise weights at random, as PyTorch does by default",),
        )  # fmt: skip

    def _time_steps(self, report: GradientFlowReport, names: list[str]) -> Iterator[Alert]:
        for name in names:
            value = report.model_setup.constant_weights[name]
            yield self.alert(
                report, name, value, 0.0, "warning",
                f"the time-step bias of this state-space layer is {value:.3g} for all heads: they all forget at the same rate, "
                f"with time steps of {math.log1p(math.exp(value)):.2g} where 0.001 to 0.1 are usual.",
                "Common cause: an initialisation that was skipped, or overwritten by one for biases.",
                advice=("Draw the time steps log-uniformly from 0.001 to 0.1, and set the bias to the inverse of their softplus",),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class OneSignWeights(Rule):
    """Layers whose initial weights are all above 0, or all below.

    Weights drawn around 0 are so with a probability of a half to the power of their number. Outputs of such a layer are next to the
    same for all inputs, as large as the sum of the inputs, and grow with the fan-in from layer to layer.

    Attributes:
        layers: Layers that must start so; a single one may be made so on purpose.
    """

    kind: ClassVar[str] = "poor_init"

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first of such layers."""
        found = report.model_setup.one_sign_weights
        if report.epoch == 0 and len(found) >= self.layers:
            site, mean = next(iter(found.items()))
            yield self.alert(
                report, site, float(len(found)), float(self.layers), "warning",
                f"all its initial weights are {'above' if mean > 0 else 'below'} 0 (mean {mean:.3g}), and so are those of "
                f"{len(found) - 1} more of its layers (limit {self.layers}): outputs for positive inputs differ little, "
                "and grow from layer to layer.",
                "Common cause: uniform_() or rand without bounds, whose numbers are from 0 to 1.",
                advice=(
                    "Initialise weights around 0, as PyTorch does by default",
                    "Where weights are to keep one sign, mute this with rules=['-poor_init']",
                ),
            )  # fmt: skip


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


__all__ = ["ConstantWeights", "GrowthWithoutGain", "OneSignWeights", "PoorInit", "WeightsGrowing"]

KINDS = (
    Kind(
        "poor_init", "Initial weights unlike those of similar layers", group="Forward", rank=500,
        hypotheses=(initial_scale, constant_weights),
        meaning="The initial weights of one layer are much larger or much smaller than those of the other layers of the same role "
        "(the same type and last part of the name), and the signal through it grows or shrinks by the same factor; or all initial "
        "weights of several layers are one number, so that their units are the same and stay the same, or all of one sign, so "
        "that their outputs hardly depend on the input.",
        formula="gain = rms(weight) * sqrt(fan_in)\n"
        "ratio = gain / median gain of the layers of the same role\n\n"
        "alert if max(ratio, 1 / ratio) > {PoorInit.factor}, in a role of at least {PoorInit.min_layers} layers,\n"
        "      unless another layer's gain is within a factor of {PoorInit.near}, or the gain is within {PoorInit.textbook},\n"
        "      or rms(weight) is within {PoorInit.same} of the median of all layers, that of most is, and it is <= "
        "{PoorInit.small}\n"
        "or if the weights of at least {ConstantWeights.layers} linear or convolution layers are one number each, and not 0,\n"
        "or the time-step bias of a state-space layer (dt_bias) is; matrices of recurrent layers count as layers\n"
        "or if the weights of at least {OneSignWeights.layers} linear or convolution layers are all above 0, or all below",
        advice=("Use the initialisation of the other layers",),
    ),
    Kind(
        "weights_growing", "Weights that grow fast", group="Updates", rank=730,
        hypotheses=STEP_SIZE,
        meaning="The norm of a weight doubled within one window, faster than in the window before, or keeps growing by the same "
        "factor from window to window while the loss rises. Training that goes on like this diverges.",
        formula="alert if weight_norm > {WeightsGrowing.factor} * that of the window before, growing no more slowly than before,\n"
        "      after {WeightsGrowing.min_windows} windows\n"
        "      or weight_norm > {GrowthWithoutGain.factor} * that three windows before, growing no more slowly than before in "
        "each,\n"
        "      while the median of the last 32 losses > its lowest + {GrowthWithoutGain.noise} * standard deviation from batch to "
        "batch",
        advice=("Try a lower learning rate", "Add weight decay, or a normalisation layer"),
        follows={"update_spike": always, "update_too_large": always},
    ),
)  # fmt: skip

RULES = (PoorInit(), ConstantWeights(), OneSignWeights(), WeightsGrowing(), GrowthWithoutGain())
