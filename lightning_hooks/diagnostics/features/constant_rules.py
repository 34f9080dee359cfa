"""What does not vary: the output of a module, the samples of a batch, the targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Judges, Rule, in_batch, percent
from lightning_hooks.diagnostics.causes.code import softmax_of_one
from lightning_hooks.diagnostics.causes.data import constant_data, large_inputs, tiny_inputs
from lightning_hooks.diagnostics.causes.steps import STEP_SIZE
from lightning_hooks.diagnostics.causes.weights import constant_weights, offset_bias
from lightning_hooks.diagnostics.causes.wiring import compared_in_pairs
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.diagnostics.training_state import first_called, loss_falls, only_the_first_step


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Rule):
    """A module whose output is the same value for every input.

    Inside a library's model so are positions of padding, and a branch for inputs that this task does not have.

    Attributes:
        threshold: Standard deviation over root mean square at or below which an output counts as constant. The default
            is about eight float32 roundings.
    """

    kind: ClassVar[str] = "constant"
    judges: ClassVar[Judges] = "epoch"

    threshold: float = 1e-6

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per module whose output does not vary; rectifiers are judged by their dead units."""
        for site, stats in report.sites.items() if not only_the_first_step(report) else ():
            spread = stats.std / stats.rms if stats.rms > 0 else 0.0
            if spread <= self.threshold and stats.count >= 2 and stats.fires:
                of_library = all(site in window.of_libraries for window in report.windows)  # it was so from the start
                yield self.alert(
                    report, site, spread, self.threshold, "info" if of_library else "warning",
                    f"every value of its output is {stats.mean:.3g}, whatever the input (relative spread {spread:.1g}, limit "
                    f"{self.threshold:.1g}).",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SameSamples(Rule):
    """Batches that hold one sample again and again."""

    kind: ClassVar[str] = "constant"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the module called first if a batch's samples do not differ."""
        for site in first_called(report) if report.same_samples else ():
            yield self.alert(
                report, site, 0.0, 0.0, "warning",
                f"all samples of a batch ({in_batch(report.input_place)}) are identical: the model is given one sample again "
                "and again, or zeros.",
                advice=("Check a batch as the model receives it",),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TinyInput(Rule):
    """Images of bytes that were divided by 255 twice: next to zero, and next to the same against what a first layer adds to them.

    Attributes:
        largest: The largest number in images without negative ones, at or below which it counts: 1 / 255.
    """

    kind: ClassVar[str] = "constant"

    largest: float = 0.004

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the module called first."""
        stats = report.inputs.get("training")
        if stats is None or not report.images or stats.min < 0 or not 0 < stats.max <= self.largest:
            return
        for site in first_called(report):
            yield self.alert(
                report, site, stats.max, self.largest, "warning",
                f"its input ({in_batch(report.input_place)}), images, has no number above {stats.max:.2g} (limit "
                f"{self.largest:g}): samples differ by next to nothing, against the biases and positions that layers add.",
                advice=("Divide once, or standardise the input",),
            )  # fmt: skip


FULL = 1.1
"""The most that samples can agree, with what rounding and the means of a window add."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstantTargets(Rule):
    """A last layer whose gradient has the same direction for every sample: the targets do not vary.

    The gradient of a bias is the sum of the samples' gradients at the layer's output. If the samples disagree, as they soon do in a
    healthy run, that sum is about a root of n smaller than if all agreed. In a regression whose targets are far from the initial
    outputs, all agree until the bias has reached their mean. So it is a warning at once under a softmax and cross entropy, whose
    gradients cancel over the outputs, but not under CTC, which first learns to put out blanks everywhere. Elsewhere it is a
    warning if samples agreed in the epoch before too and the loss no longer falls or is almost zero; else an info.

    Attributes:
        threshold: Norm of the bias's gradient over what it would be if all samples agreed, in (0, 1].
        min_samples: Samples per batch below which they may agree by chance.
        learned: Loss over that of the first epoch below which it is almost zero.
    """

    kind: ClassVar[str] = "constant"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.9
    min_samples: int = 8
    learned: ClassVar[float] = 0.01

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the module nearest the loss."""
        found = self._agreement(report)
        if found is None:
            return
        site, agreement, cancels = found
        first = next((earlier.loss.mean for earlier in report.earlier if earlier.loss is not None), math.nan)
        learned = report.loss is not None and report.loss.mean < self.learned * first
        before = report.previous()
        lasts = before is not None and self._agreement(before) is not None
        stuck = lasts and (learned or not loss_falls(report))
        yield self.alert(
            report, site, agreement, self.threshold, "warning" if (cancels and not report.loss_aligns) or stuck else "info",
            f"the gradient at its output has the same direction for all samples ({percent(agreement)} of full agreement, limit "
            f"{percent(self.threshold)}), batch after batch: the target does not depend on the input.",
            advice=("Check the targets of a batch", "Standardise the targets of a regression"),
        )  # fmt: skip

    def _agreement(self, report: GradientFlowReport) -> tuple[str, float, bool] | None:
        """The module nearest the loss, how much its samples agree, and whether its gradients cancel; None if they do not agree."""
        arrived = [site for site in report.order if site in report.modules] or list(reversed(report.modules))
        if not arrived or report.sampled_batches < 2:
            return None
        site = arrived[0]
        stats, bias, setup = report.modules[site], report.parameters.get(f"{site}.bias"), report.setups.get(f"{site}.bias")
        if bias is None or setup is None or not bias.steps or not stats.norm > 0 or setup.unzeroed_steps:
            return None  # gradients that add up from step to step are not those of one batch
        samples = stats.count / stats.calls / setup.elements
        calls = stats.calls / report.sampled_batches * max(1.0, report.batches / max(1, setup.steps))  # that add up to a step
        agreement = bias.norm / (calls * math.sqrt(samples) * stats.norm)
        cancels = setup.elements > 1 and abs(stats.mean) < 1e-3 * stats.rms
        of_this_output = agreement <= FULL  # more than full agreement: the bias has a gradient from elsewhere too
        return (site, agreement, cancels) if samples >= self.min_samples and agreement > self.threshold and of_this_output else None


@dataclass(frozen=True, slots=True, eq=False)
class SameTargets(Rule):
    """A loss all of whose targets are one and the same, sample by sample and batch by batch, though the samples differ.

    Targets of one or two dimensions do not count, nor those of fewer than 32 different numbers: labels of an adversary, centres.

    Attributes:
        min_calls: Fewer calls that were compared are not judged.
    """

    kind: ClassVar[str] = "constant"

    min_calls: int = 3

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per loss, where the samples of the first batch of each window differ."""
        if any(window.same_samples is not False for window in report.windows):
            return
        for site, stats in report.targets.items():
            if self.min_calls <= stats.compared == stats.constant:
                yield self.alert(
                    report, site, 0.0, 0.0, "warning",
                    f"its target is the same for all samples, and the same again in each of {stats.compared} sampled calls, to the "
                    "bit, while the samples of a batch differ: the target does not depend on the input.",
                    advice=(
                        "Check the targets of a batch",
                        "Where all samples are to become one template, mute this with rules=['-constant']",
                    ),
                )  # fmt: skip


__all__ = ["Constant", "ConstantTargets", "SameSamples", "SameTargets", "TinyInput"]

KINDS = (
    Kind(
        "constant", "Outputs that do not vary", group="Forward", states="symptom",
        causes=(
            constant_data, tiny_inputs, softmax_of_one, compared_in_pairs, large_inputs, constant_weights, offset_bias, *STEP_SIZE,
        ),
        meaning="A module's output does not vary, or all samples of a batch are equal or next to 0, or all samples have the same "
        "target. The model cannot learn anything about its input.",
        formula="of a module:   alert if std(output) / rms(output) <= {Constant.threshold}\n"
        "of a batch:    alert if all samples are equal to the last bit; of token ids and masks, in all of them\n"
        "               alert if the input is images, and all of its numbers are from 0 to {TinyInput.largest}\n"
        "of the targets: agreement = |gradient of the last bias| / |the same, if all samples pulled in one direction|\n"
        "               alert if agreement > {ConstantTargets.threshold}, in batches of at least {ConstantTargets.min_samples} "
        "samples\n"
        "               alert if what mse_loss, l1_loss, smooth_l1_loss or huber_loss is given is equal to the last bit for 8 "
        "samples of\n"
        "               a batch, and for the batch before, in all of at least {SameTargets.min_calls} sampled calls, and the "
        "batch's samples differ",
        severities="warning; info for the targets of a regression in the first epoch and while the loss falls, and of CTC while "
        "it falls",
        advice=("Check the data that reaches it and the layers before it",),
    ),
)  # fmt: skip

RULES = (Constant(), SameSamples(), TinyInput(), ConstantTargets(), SameTargets())
