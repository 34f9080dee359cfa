"""Weights that a training starts from: of another size than those of similar layers, one number, of one sign, or not loaded."""

from __future__ import annotations

import math
import statistics
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent
from lightning_hooks.diagnostics.causes import code, data, rates, weights
from lightning_hooks.diagnostics.loss.rules import SITE
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport, had_gradient
from lightning_hooks.diagnostics.setup.initial import FAR, TEXTBOOK, is_textbook
from lightning_hooks.diagnostics.setup.module_rules import around
from lightning_hooks.trackers.console import some


class PoorInit(Rule, kind="poor_init"):
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
    """

    factor: float = FAR
    textbook: ClassVar[tuple[float, float]] = TEXTBOOK
    near: ClassVar[float] = 2.0  # factor within which another layer is close
    min_layers: ClassVar[int] = 3  # a role with fewer layers is not judged
    small: ClassVar[float] = 0.1  # standard deviation up to which layers share one: 0.02 is common
    same: ClassVar[float] = 0.15  # by how much it may differ, as that of few numbers does

    def __call__(self, report: FeatureReport) -> Alerts:
        roles, gains, of_one_size = report.initial_roles, report.initial_gains, self._of_one_size(report)
        judged = grouped((roles[site], site) for site, gain in gains.items() if 0 < gain < math.inf and site in roles)
        for sites in [sites for sites in judged.values() if len(sites) >= self.min_layers and report.epoch == 0]:
            usual = statistics.median(gains[site] for site in sites)
            for site in [site for site in self._alone({site: gains[site] for site in sites}, usual) if site not in of_one_size]:
                ratio = gains[site] / usual
                size, limit = (f"{ratio:.3g} times", self.factor) if ratio > 1 else (f"1/{1 / ratio:.3g} of", 1 / self.factor)
                yield self.finding(
                    report, site, ratio, limit,
                    f"its initial weights are {size} the size of those of the layers of the same role (gain {gains[site]:.3g}, "
                    f"median {usual:.3g}, limit: a factor of {self.factor:.3g}), and none of these is close: signals grow or "
                    "shrink by this factor.",
                )  # fmt: skip

    def _of_one_size(self, report: FeatureReport) -> set[str]:
        usual = statistics.median(report.initial_rms.values() or [0.0])
        alike = {site for site, rms in report.initial_rms.items() if abs(rms - usual) <= self.same * usual}
        return alike if usual <= self.small and 2 * len(alike) > len(report.initial_rms) else set()

    def _alone(self, gains: dict[str, float], usual: float) -> list[str]:
        """The layers of one role whose gain is far from the usual one, close to no other and none of a textbook."""
        far = [site for site, gain in gains.items() if max(gain / usual, usual / gain) > self.factor and not is_textbook(gain)]
        return [site for site in far if sum(1 / self.near < gain / gains[site] < self.near for gain in gains.values()) == 1]


class LargeLayers(Rule, kind="poor_init"):
    """A model most of whose layers start with far larger weights than any common initialisation gives, and put out as much more.

    Without a norm signals grow from layer to layer. Behind norms they do not, and steps are small against such weights. Where the
    forward scales weights down itself, as with an equalised learning rate (Karras et al. 2018), outputs are no larger.

    Attributes:
        gain: Median gain of the layers, above which it counts: 1.4 is the largest of 1 160 drawn healthy trainings.
        outputs: Median of the root mean squares of their outputs, above which it counts.
    """

    gain: float = 4.0
    outputs: ClassVar[float] = 2.0
    min_layers: ClassVar[int] = 3

    def __call__(self, report: FeatureReport) -> Alerts:
        gains = {site: gain for site, gain in report.initial_gains.items() if 0 < gain < math.inf and site in report.sites}
        large = [site for site, gain in gains.items() if gain > self.gain]
        if len(gains) < self.min_layers or not large or report.epoch:
            return
        middle, size = (statistics.median(of) for of in (gains.values(), [report.sites[site].rms for site in gains]))
        if middle > self.gain and size > self.outputs:
            yield self.finding(
                report, large[0], middle, self.gain,
                f"{len(large)} of {len(gains)} layers start with a gain above {self.gain:g} (median {middle:.3g}): each stretches "
                f"its input by about that factor, and the median size of their outputs is {size:.3g}.",
                advice=("Leave the initialisation of layers to PyTorch",),
            )  # fmt: skip


class ConstantWeights(Rule, kind="poor_init"):
    """Layers that start with one number in all their weights.

    All outputs of such a layer are the same, and if the next layer's weights are one number too they get the same gradient: they
    stay the same (Goodfellow et al. 2016, "Deep Learning", section 8.4, on breaking symmetry). A single such layer, as some heads
    are, is harmless: the layers around it give its outputs different gradients. So are layers next to one another, each of which
    goes to the loss: their units have become different by the end of the window, and they do not count. Zeros count where most
    layers hold them: heads, and the last layers of residual branches, may start so.

    Attributes:
        layers: Layers that must start so.
    """

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Alerts:
        constant = report.model_setup.constant_weights
        if report.epoch == 0 and len(constant) >= self.layers:
            site, *others = constant
            more = ", …" * (len(others) > 2)
            yield self.finding(
                report, site, float(len(constant)), float(self.layers),
                f"all its initial weights are {constant[site]:.3g}, and those of {', '.join(others[:2])}{more} are one "
                f"number too ({len(constant)} layers, limit {self.layers}): their outputs are all the same, get the same gradient "
                "and stay the same.",
                advice=("Initialise weights at random, as PyTorch does by default",),
            )  # fmt: skip


class OneSignWeights(Rule, kind="poor_init"):
    """Layers whose initial weights are all above 0, or all below.

    Weights drawn around 0 are so with a probability of a half to the power of their number. Outputs of such a layer are next to the
    same for all inputs, as large as the sum of the inputs, and grow with the fan-in from layer to layer.

    Attributes:
        layers: Layers that must start so; a single one may be made so on purpose.
    """

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Alerts:
        found = report.model_setup.one_sign_weights
        if report.epoch == 0 and len(found) >= self.layers:
            site, mean = next(iter(found.items()))
            yield self.finding(
                report, site, float(len(found)), float(self.layers),
                f"all its initial weights are {('below', 'above')[mean > 0]} 0 (mean {mean:.3g}), and so are those of "
                f"{len(found) - 1} more of its layers (limit {self.layers}): outputs for positive inputs differ little, "
                "and grow from layer to layer.",
                advice=(
                    "Initialise weights around 0, as PyTorch does by default",
                    "Where weights are to keep one sign, mute this with rules=['-poor_init']",
                ),
            )  # fmt: skip


class FirstLossHigh(Rule, kind="poor_init"):
    """A first cross entropy far above that of equal probabilities: the model is sure of wrong answers before it has seen a sample.

    Where it is not far above, it is an info: of 300 healthy models five reach more than 2.5 times, and none 5 times. The first
    steps unlearn it.

    Attributes:
        factor: The first loss over the logarithm of the number of classes, above which it counts. He's initialisation gives 1.4.
        far: The same, from which on it is a warning: with embeddings that are drawn with a standard deviation of 1 as the last
            layer, logits are as large as the root of the width.
    """

    factor: float = 3.0
    far: ClassVar[float] = 10.0

    def __call__(self, report: FeatureReport) -> Alerts:
        last = next((name for name in reversed(report.sites) if name in report.initial_gains), "")
        for site, stats in report.outputs.items():
            chance = math.log(max(stats.classes, 2))
            ratio = stats.first_loss / chance
            if ratio > self.factor and report.epoch == 0:
                yield self.finding(
                    report, last or site, ratio, self.factor,
                    f"the first loss of {site} is {stats.first_loss:.3g}, {ratio:.3g} times that of equal probabilities for "
                    f"{stats.classes} classes ({chance:.3g}; limit: a factor of {self.factor:.3g}): logits differ too much at the "
                    "start.",
                    conclusive=ratio >= self.far,
                    advice=("Start the last layer with smaller weights, or divide its outputs by the root of its width",),
                )  # fmt: skip


class FirstLossFar(Rule, kind="poor_init"):
    """A loss that begins far above that of the best constant answer, as a squared error of inputs or targets in other units does.

    The first steps unlearn the size of the outputs, and little else. A loss that is one part of what is minimised is not judged.

    Attributes:
        factor: The loss at the start over that of the best constant answer, above which it counts: 105 is the most in 400 healthy
            trainings.
    """

    factor: float = 1000.0

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss = report.minimized
        ratio = report.over_constant * loss.began / (loss.mean or math.nan)
        if loss.mean > 0 and ratio > self.factor and report.loss_sign and not report.earlier and report.epoch == 0:
            yield self.finding(
                report, SITE, ratio, self.factor,
                f"it begins at {loss.began:.3g}, {ratio:.3g} times that of the best constant answer (limit {self.factor:g}): "
                "outputs are far from all targets.",
                advice=("Standardise inputs and targets", "Replace what is missing by the mean of its feature"),
            )  # fmt: skip


class NotLoaded(Rule, kind="not_loaded"):
    """A body that is frozen, or trained slowly, as it is in fine-tuning, and that is as PyTorch initialised it."""

    slow: ClassVar[float] = 0.02  # its rate over the head's, from which on it is an info: so it is set in trainings from scratch

    def __call__(self, report: GradientFlowReport) -> Alerts:
        found = report.model_setup.unloaded
        if found is not None and not any(had_gradient(report, f"{name}.weight") for name in found.layers if not found.rate):
            how = f"have {percent(found.rate)} of the head's learning rate" if found.rate else "are frozen"
            yield self.finding(
                report, around(found.layers), float(len(found.layers)), 1.0,
                f"{len(found.layers)} of {found.known} layers ({some(found.layers, 3)}) {how}, as if they were trained before, and "
                "are as they were initialised: layers after them learn from random features.",
                conclusive=found.rate < self.slow,
            )  # fmt: skip


__all__ = ["ConstantWeights", "FirstLossFar", "FirstLossHigh", "LargeLayers", "NotLoaded", "OneSignWeights", "PoorInit"]

KINDS = (
    Kind(
        "poor_init", "Unusual initial weights", group="Forward", states="symptom",
        causes=(
            data.placeholder, weights.stretching_start, weights.initial_scale, weights.large_start, weights.small_start,
            weights.constant_weights, weights.stretching_recurrence, data.large_inputs, data.large_targets,
        ),
        meaning="The initial weights of one layer are much larger or much smaller than those of the other layers of the same role "
        "(the same type and last part of the name), and the signal through it grows or shrinks by the same factor; or all initial "
        "weights of several layers are one number, so that their units are the same and stay the same, or all of one sign, so "
        "that their outputs hardly depend on the input; or most are far larger than usual; or the first loss is far above that of "
        "equal probabilities.",
        formula="gain = rms(weight) * sqrt(fan_in)\n"
        "ratio = gain / median gain of the layers of the same role\n\n"
        "alert if max(ratio, 1 / ratio) > {PoorInit.factor}, in a role of at least {PoorInit.min_layers} layers,\n"
        "      unless another layer's gain is within a factor of {PoorInit.near}, or the gain is within {PoorInit.textbook},\n"
        "      or rms(weight) is within {PoorInit.same} of the median of all layers, that of most is, and it is <= "
        "{PoorInit.small}\n"
        "or if the weights of at least {ConstantWeights.layers} linear or convolution layers are one number each, and not 0, and "
        "units are\n"
        "   still similar after the first window;\n"
        "matrices of recurrent layers count as layers\n"
        "or if the weights of at least {OneSignWeights.layers} linear or convolution layers are all above 0, or all below\n"
        "or if the median gain of at least {LargeLayers.min_layers} layers > {LargeLayers.gain}, and that of rms(output) > "
        "{LargeLayers.outputs}\n"
        "or if the first cross entropy > {FirstLossHigh.factor} * log(number of classes)\n"
        "or if the loss at the start > {FirstLossFar.factor} * that of the best constant answer",
        inconclusive="for a first cross entropy below {FirstLossHigh.far} * log(number of classes)",
        advice=("Use the initialisation of the other layers",),
    ),
    Kind(
        "not_loaded", "Weights that were not loaded", group="Set-up", states="fact", measures="number",
        causes=(
            code.fact("weights_not_loaded", "the weights of the body were not loaded", "replace",
                "the names in what load_state_dict is given", "those of the model, without a prefix such as 'module.'",
                "load_state_dict(weights, strict=True)"),
            rates.group_too_fast,
        ),
        meaning="A part of the model is frozen, or learns far more slowly than the head, as it does in fine-tuning. But its "
        "weights are as PyTorch initialises them: those of the checkpoint were not loaded.",
        formula="as initialised = norms with weights of 1 and biases of 0; linear and convolution layers with a bias of 0,\n"
        "                 or with weights and a bias that are uniform in ±1/sqrt(fan_in)\n\n"
        "alert if 0.8 of at least 3 layers are, that come before what trains and are frozen, or have 0.1 of its learning rate\n"
        "not for a frozen module if another one of its class and shapes trains",
        inconclusive="where it has {NotLoaded.slow} of the rate or more",
        advice=("Look at the missing_keys that load_state_dict returns, or pass strict=True",),
    ),
)  # fmt: skip
