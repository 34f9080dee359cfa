"""What the loss says of learning: one that stands still, a validation loss that rises, validation unlike training."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

from lightning_hooks.declare.kinds import ALWAYS, Kind
from lightning_hooks.declare.rule import Alerts, Rule, in_batch, percent, where
from lightning_hooks.diagnostics.causes import code, data, rates, steps, wiring
from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.loss.rules import SITE
from lightning_hooks.diagnostics.loss_inputs.validated import ClassPairs
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.trackers.console import some

VALIDATION_SITE = "validation loss"


class LossPlateau(Rule, kind="loss_plateau", judges="epoch", shares=("threshold",)):
    """A loss that stays near where it began.

    Over this window and the three before, its mean changes by less than a share of the loss at the start, as PyTorch's
    ``ReduceLROnPlateau`` judges (a relative ``threshold``), while the largest part of that is still there. A loss that has
    fallen far and stands still may have converged, and is not named.

    Attributes:
        threshold: Range of the means over the loss at the start.
        min_steps: Batches that the four windows must have.
    """

    threshold: float = 0.01
    remains: ClassVar[float] = 0.8  # lowest loss over the loss at the start
    min_steps: int = 200

    def __call__(self, report: GradientFlowReport) -> Alerts:
        losses = [one.loss for one in report.windows[-4:] if one.loss is not None and math.isfinite(one.loss.mean)]
        means, loss = [one.mean for one in losses], report.minimized
        spread = max(means, default=math.inf) - min(means, default=0.0)
        known = len(losses) == 4 and sum(one.count for one in losses) >= self.min_steps
        if known and loss.start > 0 and loss.lowest > self.remains * loss.start and spread < self.threshold * loss.start:
            yield self.finding(
                report, SITE, spread / loss.start, self.threshold,
                f"the mean losses of the last {len(means)} windows differ by {percent(spread / loss.start)} of the loss at the "
                f"start ({loss.start:.3g}; limit {percent(self.threshold)}), and its lowest level is {loss.lowest:.3g}.",
                conclusive=False,
            )  # fmt: skip


class Overfitting(Rule, kind="overfitting", judges="epoch"):
    """A validation loss that rises while the training loss falls.

    Early stopping by successive rises (Prechelt 1998, "Early Stopping - But When?", criterion UP): the validation loss is larger
    than at the validation before, ``rises`` times in a row. The metric is one that the user logs, with ``val`` and ``loss`` in
    its name.

    Attributes:
        rises: Validations in a row, each with a larger loss.
    """

    rises: int = 3
    threshold: ClassVar[float] = 0.02  # rise over the first of these losses, in all

    def __call__(self, report: GradientFlowReport) -> Alerts:
        last = (report.loss or NO_LOSS).validations[-self.rises - 1 :]
        if len(last) > self.rises and all(one.loss < other.loss for one, other in pairwise(last)):
            first, now = last[0], last[-1]
            rise = (now.loss - first.loss) / abs(first.loss) if first.loss else math.inf
            if rise > self.threshold and now.training < first.training:
                yield self.finding(
                    report, VALIDATION_SITE, rise, self.threshold,
                    f"the validation loss rose {self.rises} times in a row, from {first.loss:.3g} to {now.loss:.3g}, while the "
                    f"training loss fell from {first.training:.3g} to {now.training:.3g}.",
                    conclusive=False,
                )  # fmt: skip


class LearnedByHeart(Rule, kind="overfitting", judges="epoch", shares=("better",)):
    """A validation loss that was never better than guessing, while the training loss is.

    Guessing is the best answer that ignores the input, as the targets of training say; where that is not measured, it is the loss
    that training began with. A model that overfits learned something that holds for new samples before; this one never did.

    Attributes:
        better: Training loss over that of guessing, below which it must lie.
    """

    better: float = 0.95
    worse: ClassVar[float] = 1.02  # validation loss over the first one, above which the last two must lie
    validations: ClassVar[int] = 3  # validations that there must be

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss, over = report.minimized, report.learned.over_constant
        if len(loss.validations) < self.validations:
            return
        known = [one.loss for earlier in report.windows if earlier.loss is not None for one in earlier.loss.validations]
        last, now = loss.validations[-2:]
        guessing, least = loss.start, 0.98
        what = "training began with,"
        if over:
            guessing, least = loss.mean / over, 0.95  # over that is of a sample of the batches
            what = "guessing gives, without looking at the input,"
        limit = max(least * guessing, 0.98 * known[0])
        never = min(last.loss, now.loss) > self.worse * known[0] and min(known) > limit
        if guessing > 0 and never and now.training < self.better * guessing:
            yield self.finding(
                report, VALIDATION_SITE, now.loss / guessing, limit / guessing,
                f"the validation loss is {now.loss:.3g} and was never clearly below the {guessing:.3g} that {what} while the "
                f"training loss has fallen to {now.training:.3g}.",
                advice=("Check that labels belong to their inputs, in training and in validation",
                    "Compare the transforms and the numbers of the classes of training and validation"),
            )  # fmt: skip


class ValidationShift(Rule, kind="validation_shift", judges="epoch"):
    """Validation data whose size differs from that of the training data.

    The batches are compared, and what the first layer is given: a training step may scale its batch, or add noise to it. The
    outputs of layers differ in healthy runs too: by dropout, batch normalisation and what was learned over the epoch.
    Training data that are larger than in all windows before hold an unusual batch. What a step makes without data or targets, as
    the states of a game are, changes with what was learned.

    Attributes:
        factor: Root mean square of the inputs in validation over that in training, or the inverse.
    """

    factor: float = 4.0

    def __call__(self, report: FeatureReport) -> Alerts:
        data = bool(report.inputs or report.outputs or report.targets)
        compared = (
            (report.first_called, f"its input ({in_batch(report.input_place)})", [one.inputs for one in report.windows]),
            (report.first_layer * data, "its input, as the step has prepared it,", [one.layer_inputs for one in report.windows]),
        )
        for site, what, inputs in compared:
            *known, training = [getattr(of_window.get("training"), "rms", 0.0) for of_window in inputs]
            validation = getattr(inputs[-1].get("validation"), "rms", 0.0)
            usual = not known or training <= self.factor * max(known)  # else single batches of this window are unlike all before
            ratio = validation / training if training > 0 and validation > 0 and usual else 1.0
            if max(ratio, 1 / ratio) > self.factor and site:
                yield self.finding(
                    report, site, ratio, (1 / self.factor, self.factor)[ratio > 1],
                    f"{what} has a root mean square of {validation:.3g} in validation and {training:.3g} in training (limit: a "
                    f"factor of {self.factor:.3g}): the two are prepared differently.",
                )  # fmt: skip
                return


class ValidationApart(Rule, kind="validation_shift", judges="epoch"):
    """Two validation losses in a row that are worse than guessing, early in training, while those of training are clearly better.

    In two epochs little is learned by heart: the two are prepared or computed differently, or training sees few samples again and
    again. A single bad validation may follow a bad step, and a loss that falls fast is on its way. Averaged weights that are
    validated may be as bad as guessing at first, but not worse. Running statistics of batch norms that still hold a part of their
    first values say nothing of the data.

    Attributes:
        worse: Validation loss over that of guessing, above which it counts.
    """

    worse: float = 1.1
    better: ClassVar[float] = 0.8  # training loss over the validation loss, below which it counts; that of guessing is more too
    stays: ClassVar[float] = 0.9  # the second validation loss over the first, above which it counts
    settled: ClassVar[float] = 0.05  # share of their first values in running statistics, below which it counts

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss, guessing = report.minimized, report.learned.constant_loss or math.nan
        last = loss.validations[-2:]
        distant = [
            one
            for one in last
            if one.loss > self.worse * guessing and min(one.training, loss.latest) < min(self.better * one.loss, guessing)
        ]
        unsettled = (1 - report.model_setup.slowest_momentum) ** report.step
        stays = len(distant) == 2 and last[-1].loss > self.stays * last[0].loss
        if stays and report.epoch <= 1 and report.loss_sign and unsettled < self.settled:
            validation, training = last[-1].loss, min(last[-1].training, loss.latest)
            yield self.finding(
                report, VALIDATION_SITE, validation / guessing, self.worse,
                f"the validation loss was {last[0].loss:.3g} and is {validation:.3g}, and guessing has {guessing:.3g} without "
                f"looking at the input (limit {self.worse:g} times that), while the training loss is {training:.3g}.",
                advice=("Compare a batch of training with one of validation, as the model receives them",
                    "Validate on training data: the loss must be near that of training"),
            )  # fmt: skip


class ClassesRenumbered(Rule, kind="validation_shift"):
    """A cross entropy whose predictions follow the labels of validation one to one, but by other numbers.

    That is no chance: what the model has learned holds for validation data. It counts where more predictions are right by other
    numbers than by those of the labels, and those of training are right by their own.
    """

    sigmas: ClassVar[float] = 4.0  # of as many tosses of a coin, by which predictions must be right by other numbers more often

    def __call__(self, report: FeatureReport) -> Alerts:
        trained = {site: stats.accuracy for site, stats in report.outputs.items()}
        for site, found in where(report.validated, self._holds):
            for accuracy in (share for name, share in trained.items() if name == site and 2 * share > found.own + found.other):
                named = [f"{label} is predicted as {guess}" for label, guess in found.renumbered.items()]
                yield self.finding(
                    report, site, found.other, found.own,
                    f"in validation class {some(named, 3)}: {percent(found.other)} of {found.rows} predictions are right by these "
                    f"numbers, and {percent(found.own)} by those of the labels, where training has {percent(accuracy)}.",
                    advice=("Number the classes once, by one table for training and validation",),
                )  # fmt: skip

    def _holds(self, found: ClassPairs) -> bool:
        return len(found.renumbered) > 1 and found.moved - found.right > self.sigmas * math.sqrt(found.moved + found.right)


__all__ = ["ClassesRenumbered", "LearnedByHeart", "LossPlateau", "Overfitting", "ValidationApart", "ValidationShift"]

KINDS = (
    Kind(
        "loss_plateau", "A loss that stands still", group="Loss", states="outcome", measures="share",
        causes=(code.activation_before_loss, wiring.wrong_axis, wiring.detached_state, rates.rate_too_low, *steps.STEP_SIZE),
        meaning="The loss stays near the value that it began with. The model hardly learns.",
        formula="means = mean loss of this window and the three before, with at least {LossPlateau.min_steps} batches\n\n"
        "alert if max(means) - min(means) < {LossPlateau.threshold} * loss at the start\n"
        "     and the lowest level so far > {LossPlateau.remains} * loss at the start",
        inconclusive=ALWAYS,
        advice=("Try a learning rate ten times larger, and one ten times smaller",
            "Check that labels belong to their inputs, on one batch that the model should learn by heart"),
    ),
    Kind(
        "overfitting", "Validation loss that rises", group="Loss", states="outcome", measures="share",
        causes=(data.unlike_validation,),
        meaning="The validation loss rises from validation to validation while the training loss falls, or was never better than "
        "guessing while the training loss is. The metric is one that "
        "you log with `val` and `loss` in its name.",
        formula="alert if the validation loss rose {Overfitting.rises} times in a row, by more than {Overfitting.threshold} in "
        "all,\n"
        "     while the mean training loss before the validations fell\n"
        "or if, of at least {LearnedByHeart.validations} validations, none was better than guessing (or, where that is not "
        "measured, than the loss\n"
        "   at the start), the last two > {LearnedByHeart.worse} * the first, and the training loss < {LearnedByHeart.better} * "
        "guessing",
        inconclusive="where validation was better than guessing",
        advice=("Stop here, with EarlyStopping, and keep the best checkpoint",
            "Use more data, augmentation, dropout or weight decay, or a smaller model"),
    ),
    Kind(
        "validation_shift", "Validation data unlike the training data", group="Data", states="fact",
        causes=(code.other_numbers, data.strong_augmentation, code.OTHER_UNITS),
        meaning="The model's input has a different size in validation than in training: usually one of the two is not normalised, "
        "or training adds noise that is larger than the data. "
        "Or predictions in validation follow the labels, by other numbers of the classes.",
        formula="ratio = rms(input in validation) / rms(input in training), of batches, and of what the first layer is given\n\n"
        "alert if max(ratio, 1 / ratio) > {ValidationShift.factor}, unless rms in training > {ValidationShift.factor} * that of "
        "all windows before\n"
        "or if, in the first two epochs, two validation losses in a row > {ValidationApart.worse} * that of guessing, and training "
        "loss < {ValidationApart.better} * validation loss and < that of guessing,\n   the second > {ValidationApart.stays} * the "
        "first,\n"
        "   once (1 - momentum) ** steps < {ValidationApart.settled} for all batch norms\n"
        "or if, of the predictions of a cross entropy in validation, more are right by other numbers of classes than by those of "
        "the labels,\n   by {ClassesRenumbered.sigmas} * sqrt(both), of two classes and more, each predicted as one other class "
        "and nothing else as that,\n   and in training more are right than the mean of both",
        advice=("Use the same transforms and units for training and validation",),
    ),
)  # fmt: skip
