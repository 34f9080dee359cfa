"""Rules over how a model is built and initialised, and over its inputs and targets."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.past import loss_falls
from lightning_hooks.alerts.rule import Judges, Rule, in_batch, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import FeatureReport, GradientFlowReport
from lightning_hooks.statistics.initial import TEXTBOOK


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
class Shared(Rule):
    """One layer under several names, as ``[layer] * 4`` makes it."""

    kind: ClassVar[str] = "shared"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield a warning per module that a list holds several times; an info where it has several names, as by design."""
        for site, others in report.shared.items():
            listed = ", ".join(others[:3]) + ", …" * (len(others) > 3)
            numbered = all(name.rpartition(".")[2].isdigit() for name in (site, *others))
            yield self.alert(
                report, site, len(others) + 1, 1, "warning" if numbered else "info",
                f"{listed} {'is' if len(others) == 1 else 'are'} the same module, with the same weights.",
                "Common cause: a list that was multiplied ([layer] * n repeats one layer).",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DoubleSoftmax(Rule):
    """A softmax (or sigmoid) before a loss that applies one itself."""

    kind: ClassVar[str] = "double_softmax"

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert if the loss squashes what is squashed already."""
        if report.squashed_twice:
            yield self.alert(
                report, report.squashed_twice, 2.0, 1.0, "warning",
                "the loss applies a softmax or sigmoid to the output of another one (cross_entropy and "
                "binary_cross_entropy_with_logits expect logits): gradients are small and the loss cannot reach 0.",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SameSamples(Rule):
    """Batches that hold one sample again and again."""

    kind: ClassVar[str] = "constant"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the module called first if a batch's samples do not differ."""
        for site in _first_called(report) if report.same_samples else ():
            yield self.alert(
                report, site, 0.0, 0.0, "warning",
                f"all samples of a batch ({in_batch(report.input_place)}) are identical: the model is given one sample again "
                "and again, or zeros.",
                "Common causes: a __getitem__ that ignores its index, or data that are lost before the model "
                "(integer division, a mask).",
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
        for site in _first_called(report):
            yield self.alert(
                report, site, stats.max, self.largest, "warning",
                f"its input ({in_batch(report.input_place)}), images, has no number above {stats.max:.2g} (limit "
                f"{self.largest:g}): samples differ by next to nothing, against the biases and positions that layers add.",
                "Common cause: images that are divided by 255 twice, by ToTensor and by hand.",
                advice=("Divide once, or standardise the input",),
            )  # fmt: skip


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
    learned: float = 0.01

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert at the module nearest the loss."""
        found = self._agreement(report)
        if found is None:
            return
        site, agreement, cancels = found
        first = next((earlier.loss.mean for earlier in history if earlier.loss is not None), math.nan)
        learned = report.loss is not None and report.loss.mean < self.learned * first
        lasts = bool(history) and self._agreement(history[-1]) is not None
        stuck = lasts and (learned or not loss_falls(report, history))
        yield self.alert(
            report, site, agreement, self.threshold, "warning" if (cancels and not report.loss_aligns) or stuck else "info",
            f"the gradient at its output has the same direction for all samples ({percent(agreement)} of full agreement, limit "
            f"{percent(self.threshold)}), batch after batch: the target does not depend on the input.",
            "Common causes: constant labels (one class only, a wrong column), data that are not shuffled, or targets of a "
            "regression that are far from 0.",
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
        return (site, agreement, cancels) if samples >= self.min_samples and agreement > self.threshold else None


@dataclass(frozen=True, slots=True, eq=False)
class ValidationShift(Rule):
    """Validation data whose size differs from that of the training data.

    The model's inputs are compared. The outputs of its modules differ in healthy runs too: by dropout, batch normalisation and what
    was learned over the epoch.

    Attributes:
        factor: Root mean square of the inputs in validation over that in training, or the inverse.
    """

    kind: ClassVar[str] = "validation_shift"
    judges: ClassVar[Judges] = "epoch"

    factor: float = 5.0

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the module called first if the inputs' size differs between training and validation."""
        training, validation = report.inputs.get("training"), report.inputs.get("validation")
        if training is None or validation is None or not (training.rms > 0 and validation.rms > 0):
            return
        ratio = validation.rms / training.rms
        for site in _first_called(report) if max(ratio, 1 / ratio) > self.factor else ():
            yield self.alert(
                report, site, ratio, self.factor, "warning",
                f"its input ({in_batch(report.input_place)}) has a root mean square of {validation.rms:.3g} in "
                f"validation and {training.rms:.3g} in training (limit: a factor of {self.factor:.3g}): the two are prepared "
                "differently.",
                "Common causes: one of them is not normalised, or has other units.",
            )  # fmt: skip


def _first_called(report: FeatureReport) -> list[str]:
    """The module called first, if one was."""
    return [site for site in report.order or report.sites if site in report.sites][:1]
