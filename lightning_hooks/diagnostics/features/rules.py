"""What modules put out: dead units, saturated activations, nothing; and what does not vary: outputs, samples, targets."""

from __future__ import annotations

import math
from typing import ClassVar

from lightning_hooks.declare.kinds import ALWAYS, Kind
from lightning_hooks.declare.rule import Alerts, Rule, in_batch, percent, where
from lightning_hooks.diagnostics.causes import code, data, steps, weights, wiring
from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport, loss_falls, only_the_first_step


class Constant(Rule, kind="constant", judges="epoch"):
    """A module whose output is the same value for every input.

    Inside a library's model so are positions of padding, and a branch for inputs that this task does not have.

    Attributes:
        threshold: Standard deviation over root mean square at or below which an output counts as constant. The default
            is about eight float32 roundings.
    """

    threshold: float = 1e-6

    def __call__(self, report: FeatureReport) -> Alerts:
        varies = only_the_first_step(report)  # as far as one batch shows
        for site, stats in report.sites.items():
            if stats.spread <= self.threshold and stats.count >= 2 and stats.dead_fraction != 1.0 and not varies:
                of_library = all(site in window.of_libraries for window in report.windows)  # it was so from the start
                yield self.finding(
                    report, site, stats.spread, self.threshold,
                    f"every value of its output is {stats.mean:.3g}, whatever the input (relative spread {stats.spread:.1g}, limit "
                    f"{self.threshold:.1g}).",
                    conclusive=not of_library,
                )  # fmt: skip


class SameSamples(Rule, kind="constant"):
    """Batches that hold one sample again and again."""

    def __call__(self, report: FeatureReport) -> Alerts:
        if report.same_samples and report.first_called:
            yield self.finding(
                report, report.first_called, 0.0, 0.0,
                f"all samples of a batch ({in_batch(report.input_place)}) are identical: the model is given one sample again "
                "and again, or zeros.",
                advice=("Check a batch as the model receives it",),
            )  # fmt: skip


class TinyInput(Rule, kind="constant"):
    """Images of bytes that were divided by 255 twice: next to zero, and to the same against what a first layer adds to them."""

    largest: ClassVar[float] = 0.004  # the largest number in images without negative ones, at or below which it counts: 1 / 255

    def __call__(self, report: FeatureReport) -> Alerts:
        stats = report.inputs.get("training")
        if stats is not None and report.images and stats.min >= 0 and 0 < stats.max <= self.largest and report.first_called:
            yield self.finding(
                report, report.first_called, stats.max, self.largest,
                f"its input ({in_batch(report.input_place)}), images, has no number above {stats.max:.2g} (limit "
                f"{self.largest:g}): samples differ by next to nothing, against the biases and positions that layers add.",
                advice=("Divide once, or standardise the input",),
            )  # fmt: skip


class OffsetInput(Rule, kind="constant"):
    """Inputs far from zero for how much they vary: to a first layer all samples are nearly the same.

    Data between 0 and 1, or bytes, have a mean of about one standard deviation. Where a batch norm comes first, what it puts out
    differs from sample to sample, and all is well.

    Attributes:
        spread: Standard deviation of all numbers of the input over the distance of their mean from zero, below which it counts.
    """

    spread: float = 0.1
    alike: ClassVar[float] = 0.1  # variance between samples over that within one, in what comes first, below which it counts

    def __call__(self, report: FeatureReport) -> Alerts:
        first = report.representations.get(report.first_called)
        alike = report.first_called and (first is None or first.ratio < self.alike)
        inputs = {part: stats for part, stats in report.inputs.items() if part == "training" and alike}
        for _, stats in where(inputs, lambda stats: 0 < stats.std < self.spread * abs(stats.mean) < math.inf):
            yield self.finding(
                report, report.first_called, stats.std / abs(stats.mean), self.spread,
                f"its input ({in_batch(report.input_place)}) has a mean of {stats.mean:.3g} and a standard deviation of "
                f"{stats.std:.3g}, {percent(stats.std / abs(stats.mean))} of that (limit {percent(self.spread)}): samples differ "
                "little against what they have in common.",
                advice=("Subtract the mean of the training data, and divide by their standard deviation",),
            )  # fmt: skip


FULL = 1.1  # the most that samples can agree, with what rounding and the means of a window add


class ConstantTargets(Rule, kind="constant", shares=("threshold",)):
    """A last layer whose gradient has the same direction for every sample: the targets do not vary.

    The gradient of a bias is the sum of the samples' gradients at the layer's output. If the samples disagree, as they soon do in a
    healthy run, that sum is about a root of n smaller than if all agreed. In a regression whose targets are far from the initial
    outputs, all agree until the bias has reached their mean. So it is a warning at once under a softmax and cross entropy, whose
    gradients cancel over the outputs, but not under CTC, which first learns to put out blanks everywhere. Elsewhere it is a
    warning if samples agreed in the epoch before too and the loss no longer falls or is almost zero; else an info.

    Attributes:
        threshold: Norm of the bias's gradient over what it would be if all samples agreed, in (0, 1].
    """

    threshold: float = 0.9
    min_samples: ClassVar[int] = 8  # samples per batch below which they may agree by chance
    learned: ClassVar[float] = 0.01  # loss over that of the first epoch below which it is almost zero

    def __call__(self, report: GradientFlowReport) -> Alerts:
        first = next((earlier.loss.mean for earlier in report.earlier if earlier.loss is not None), math.nan)
        learned = (report.loss or NO_LOSS).mean < self.learned * first
        for site, agreement, cancels in self._agreement(report):
            lasts = any(self._agreement(before) for before in report.earlier[-1:])
            stuck = lasts and (learned or not loss_falls(report))
            yield self.finding(
                report, site, agreement, self.threshold,
                f"the gradient at its output has the same direction for all samples ({percent(agreement)} of full agreement, limit "
                f"{percent(self.threshold)}), batch after batch: the target does not depend on the input.",
                conclusive=(cancels and not report.loss_aligns) or stuck,
                advice=("Check the targets of a batch", "Standardise the targets of a regression"),
            )  # fmt: skip

    def _agreement(self, report: GradientFlowReport) -> list[tuple[str, float, bool]]:
        """The module nearest the loss if its samples agree, how much they do, and whether its gradients cancel."""
        site = next((site for site in (*report.order, *reversed(report.modules)) if site in report.modules), "")
        bias, setup = report.parameters.get(f"{site}.bias"), report.setups.get(f"{site}.bias")
        solved = report.over_constant < self.learned  # targets differ: a few samples may make all that is left of the loss
        if bias is None or setup is None or not bias.steps or setup.unzeroed_steps or report.sampled_batches < 2 or solved:
            return []  # gradients that add up from step to step are not those of one batch
        stats = report.modules[site]
        samples = stats.count / stats.calls / setup.elements
        calls = stats.calls / report.sampled_batches * max(1.0, report.batches / max(1, setup.steps))  # that add up to a step
        agreement = bias.norm / (calls * math.sqrt(samples) * stats.norm) if stats.norm > 0 else 0.0
        cancels = setup.elements > 1 and abs(stats.mean) < 1e-3 * stats.rms
        # More than full agreement: the bias has a gradient from elsewhere too.
        return [(site, agreement, cancels)] * (samples >= self.min_samples and self.threshold < agreement <= FULL)


class SameTargets(Rule, kind="constant"):
    """A loss all of whose targets are one and the same, sample by sample and batch by batch, though the samples differ.

    Targets of one or two dimensions do not count, nor those of fewer than 32 different numbers: labels of an adversary, centres.
    """

    min_calls: ClassVar[int] = 3  # fewer calls that were compared are not judged

    def __call__(self, report: FeatureReport) -> Alerts:
        differ = all(window.same_samples is False for window in report.windows)  # the samples of the first batch of each window
        for site in [
            site for site, stats in report.targets.items() if self.min_calls <= stats.compared == stats.constant and differ
        ]:
            yield self.finding(
                report, site, 0.0, 0.0,
                f"its target is the same for all samples, and the same again in each of {report.targets[site].compared} sampled "
                "calls, to the bit, while the samples of a batch differ: the target does not depend on the input.",
                advice=(
                    "Check the targets of a batch",
                    "Where all samples are to become one template, mute this with rules=['-constant']",
                ),
            )  # fmt: skip


class Dead(Rule, kind="dead", judges="epoch", shares=("threshold", "dying", "of_few")):
    """Units of a rectifier that never fired in the epoch.

    The hook literature and SageMaker's dead-ReLU rule flag half of a layer. Small healthy nets get there, such as a VAE's encoder
    (56 %) and the mobile nets of ReLU6 and hard-swish (65 %).

    Attributes:
        threshold: Share of a rectifier's units, in [0, 1].
        dying: Share that is enough where it has grown by ``growth`` since training's first epoch.
        min_units: Units below which a layer is judged only above ``of_few``: a few more of 32 units may be dead by chance.
        of_few: That share.
    """

    threshold: float = 0.7
    dying: float = 0.6
    growth: ClassVar[float] = 0.2  # as a share of the units
    min_samples: ClassVar[int] = 16  # values seen of each unit, below which only a layer without any unit that fired is judged
    min_units: ClassVar[int] = 64
    of_few: float = 0.8

    def __call__(self, report: FeatureReport) -> Alerts:
        least = min(self.threshold, self.dying)  # no limit is below it
        dying = {site: dead for site, stats in report.sites.items() if (dead := stats.dead_fraction or 0.0) > least}
        for site, dead in dying.items():
            stats = report.sites[site]
            known = [earlier.sites[site].dead_fraction for earlier in report.earlier if site in earlier.sites]
            grown = [first for first in known[:1] if first is not None and dead - first > self.growth]
            limit = min([self.threshold, *[self.dying] * len(grown)])
            limit = max(limit, self.of_few * (stats.units < self.min_units))
            samples = math.inf if stats.unit_samples is None else stats.unit_samples
            if dead > limit and (dead == 1.0 or samples >= self.min_samples):
                below = "".join(f"; {percent(first)} at first" for first in grown if limit < self.threshold)
                yield self.finding(
                    report, site, dead, limit,
                    f"{percent(dead)} of its units output zero for every sampled input (limit "
                    f"{percent(limit)}{below}): they pass no gradient and cannot recover.",
                )  # fmt: skip


class Saturated(Rule, kind="saturated", judges="epoch", shares=("threshold", "learned")):
    """A bounded activation that sits at its bounds.

    Calls of ``softmax`` are not judged: the distributions of a classifier may be certain, and attention has rules of its own. Nor
    is what gives a few numbers: a share or a rate that is learned is kept in bounds so.

    Attributes:
        threshold: Share of its values, in [0, 1]. Half is the share the hook literature and SageMaker's rules flag.
        learned: The same for an activation that was below it in training's first window: gates learn to be open or shut.
    """

    threshold: float = 0.5
    learned: float = 0.9
    min_values: ClassVar[int] = 8  # values of a call below which it is not judged

    def __call__(self, report: FeatureReport) -> Alerts:
        first = {site: stats.saturated_fraction for site, stats in report.first.sites.items()}
        for site in [site for site, stats in report.sites.items() if stats.count >= self.min_values * stats.calls]:
            saturated, began = report.sites[site].saturated_fraction or 0.0, first.get(site)
            learned = began is not None and not began > self.threshold
            limit = max(self.threshold, self.learned * learned)
            if saturated > limit and report.functions.get(site) != "softmax":
                yield self.finding(
                    report, site, saturated, limit,
                    f"{percent(saturated)} of its values are at a bound of the activation (limit "
                    f"{percent(limit)}), where the slope is almost zero and gradients vanish.",
                )  # fmt: skip


class Silent(Rule, kind="silent", judges="epoch"):
    """A selected module whose hook never ran, or whose output holds no number."""

    def __call__(self, report: FeatureReport) -> Alerts:
        for site in report.silent:
            called = site in report.unmeasured
            yield self.finding(
                report, site, 0.0, 1.0,
                "it was called, but its output holds no floating-point tensor (integers, None, or another object), or only one "
                "that has no values of its own (under torch.func): there is nothing to measure."
                if called
                else "it was not called in any sampled training batch, so it was not measured (it is not zero and not dead).",
                conclusive=False,
                advice=("Leave it out with modules=, or mute this with rules=['-silent']",) * called,
            )  # fmt: skip


__all__ = ["Constant", "ConstantTargets", "Dead", "OffsetInput", "SameSamples", "SameTargets", "Saturated", "Silent", "TinyInput"]

KINDS = (
    Kind(
        "constant", "Outputs that do not vary", group="Forward", states="symptom",
        causes=(
            data.constant_data, data.tiny_inputs, code.softmax_of_one, wiring.compared_in_pairs, data.large_inputs,
            weights.constant_weights, weights.offset_bias, *steps.STEP_SIZE,
        ),
        meaning="A module's output does not vary, or all samples of a batch are equal, next to 0 or far from it, or all have one "
        "target. The model cannot learn anything about its input.",
        formula="of a module:   alert if std(output) / rms(output) <= {Constant.threshold}\n"
        "of a batch:    alert if all samples are equal to the last bit; of token ids and masks, in all of them\n"
        "               alert if the input is images, and all of its numbers are from 0 to {TinyInput.largest}\n"
        "               alert if 0 < std < {OffsetInput.spread} * |mean|, of all numbers of the input, and the variance between "
        "samples\n               < {OffsetInput.alike} * that within one, at the module called first\n"
        "of the targets: agreement = |gradient of the last bias| / |the same, if all samples pulled in one direction|\n"
        "               alert if agreement > {ConstantTargets.threshold}, in batches of at least {ConstantTargets.min_samples} "
        "samples\n"
        "               alert if what mse_loss, l1_loss, smooth_l1_loss or huber_loss is given is equal to the last bit for 8 "
        "samples of\n"
        "               a batch, and for the batch before, in all of at least {SameTargets.min_calls} sampled calls, and the "
        "batch's samples differ",
        inconclusive="for the targets of a regression in the first epoch and while the loss falls, and of CTC while it falls",
        advice=("Check the data that reaches it and the layers before it",),
    ),
    Kind(
        "dead", "Dead units", group="Forward", states="symptom", measures="share", limit=Dead().threshold,
        causes=(weights.offset_bias, weights.constant_weights, weights.initial_scale, *steps.STEP_SIZE, data.large_inputs),
        meaning="Units of a rectifier (`nn.ReLU`, `nn.ReLU6`) gave 0 for every sampled input of the epoch. They pass no gradient, "
        "so they cannot recover by themselves.",
        formula="dead_fraction = units that are 0 in every sampled batch of the epoch / units of the layer\n\n"
        "alert if dead_fraction > {Dead.threshold}\n"
        "      or dead_fraction > {Dead.dying} and dead_fraction - dead_fraction in the first epoch > {Dead.growth}\n"
        "In a layer of fewer than {Dead.min_units} units the limit is at least {Dead.of_few}.\n"
        "With fewer than {Dead.min_samples} values of each unit only a layer whose units are all dead is judged.",
        critical=1.0,
        advice=("Try a lower learning rate or a warm-up", "Check the layer's bias and initialisation",
            "Use a LeakyReLU or GELU in its place"),
    ),
    Kind(
        "saturated", "Saturated activations", group="Forward",
        states="symptom", measures="share", limit=Saturated().threshold,
        causes=(data.large_inputs, code.softmax_of_one, weights.initial_scale, weights.offset_bias, *steps.STEP_SIZE),
        meaning="Most values of a bounded activation (sigmoid, tanh, softmax, ReLU6, hardtanh and the flat tail of GELU, SiLU, "
        "ELU, softplus) are at a bound, where the slope is almost zero. Little gradient passes.",
        formula="saturated_fraction = values within 1 % of the activation's range from a bound / values\n\n"
        "alert if saturated_fraction > {Saturated.threshold}; > {Saturated.learned} if it was below {Saturated.threshold} in the "
        "first window",
        advice=("Normalise the inputs", "Put a normalisation layer before it", "Try a smaller initialisation"),
    ),
    Kind(
        "silent", "Modules that were not measured", group="Set-up", states="fact", measures="nothing",
        meaning="A chosen module was never called in a sampled training batch, or it returned no floating-point tensor. Nothing "
        "is known about it: it is neither zero nor dead.",
        formula="alert if calls = 0, or no output holds a floating-point tensor",
        inconclusive=ALWAYS,
        advice=("Remove it if it is not used", "Call it as module(x) instead of module.forward(x)",
            "Call torch.compiler.reset() before fit if the model was compiled earlier"),
    ),
)  # fmt: skip
