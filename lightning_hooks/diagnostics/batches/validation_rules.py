"""Validation data, or a validation loss, unlike those of training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Judges, Rule, in_batch
from lightning_hooks.diagnostics.causes.code import OTHER_UNITS, other_numbers
from lightning_hooks.diagnostics.excuses import first_called
from lightning_hooks.diagnostics.loss.learning_rules import VALIDATION_SITE
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport


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
        for site in first_called(report) if max(ratio, 1 / ratio) > self.factor else ():
            yield self.alert(
                report, site, ratio, self.factor, "warning",
                f"its input ({in_batch(report.input_place)}) has a root mean square of {validation.rms:.3g} in "
                f"validation and {training.rms:.3g} in training (limit: a factor of {self.factor:.3g}): the two are prepared "
                "differently.",
                "Common causes: one of them is not normalised, or has other units.",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ValidationApart(Rule):
    """A validation loss that is worse than guessing in the first epoch, while that of training is clearly better.

    In its first epoch a model has seen each sample once, so that its training loss is one on new samples, and nothing is learned by
    heart: the two are prepared or computed differently, or training sees few samples again and again. Averaged weights that are
    validated may be as bad as guessing at first, but not worse.

    Attributes:
        worse: Validation loss over that of guessing, above which it counts.
        better: Training loss over the validation loss, below which it counts.
    """

    kind: ClassVar[str] = "validation_shift"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("better",)

    worse: float = 1.1
    better: float = 0.8

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert after the validations of the first epoch."""
        loss, over = report.loss, None if report.learning is None else report.learning.over_constant
        if report.epoch or loss is None or not over or not loss.validations or not (loss.optimized and report.loss_sign):
            return
        guessing, validation = loss.mean / over, loss.validations[-1].loss
        training = min(loss.mean, loss.latest)
        if guessing > 0 and validation > self.worse * guessing and training < self.better * validation:
            yield self.alert(
                report, VALIDATION_SITE, validation / guessing, self.worse, "warning",
                f"the validation loss is {validation:.3g} after the first epoch, and guessing has {guessing:.3g} without a look at "
                f"the input (limit {self.worse:g} times that), while the training loss has fallen to {training:.3g}.",
                "Nothing is learned by heart in one epoch. Common causes: other transforms, units, vocabularies or numbers of "
                "classes in validation, a layer that computes something else in eval mode, a sampler that draws few samples.",
                advice=("Compare a batch of training with one of validation, as the model receives them",
                    "Validate on training data: the loss must be near that of training"),
            )  # fmt: skip


__all__ = ["ValidationApart", "ValidationShift"]

KINDS = (
    Kind(
        "validation_shift", "Validation data unlike the training data", group="Data", rank=1420,
        hypotheses=(other_numbers, OTHER_UNITS),
        meaning="The model's input has a different size in validation than in training. Usually one of the two is not normalised.",
        formula="ratio = rms(model input in validation) / rms(model input in training)\n\n"
        "alert if max(ratio, 1 / ratio) > {ValidationShift.factor}\n"
        "or if, after the first epoch, validation loss > {ValidationApart.worse} * that of guessing, and training loss < "
        "{ValidationApart.better} * validation loss",
        advice=("Use the same transforms and units for training and validation",),
    ),
)  # fmt: skip

RULES = (ValidationShift(), ValidationApart())
