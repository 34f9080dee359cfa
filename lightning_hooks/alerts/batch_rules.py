"""Batches: labels that are all ignored, batches that come again, other data in validation, ids out of range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.links import from_first
from lightning_hooks.alerts.past import first_called
from lightning_hooks.alerts.rule import Judges, Rule, in_batch, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Kind
from lightning_hooks.reports.windows import FeatureReport, GradientFlowReport

THE_DATA = "the data"


@dataclass(frozen=True, slots=True, eq=False)
class LabelsIgnored(Rule):
    """Batches all of whose targets are ``ignore_index``: cross entropy has nothing to average, and gives NaN.

    PyTorch's documentation of ``CrossEntropyLoss``: the mean is over the targets that are not ignored.

    Attributes:
        threshold: Share of the sampled batches that must be ignored as a whole, unless a loss was not finite.
    """

    kind: ClassVar[str] = "labels_ignored"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.5

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield a warning if batches are lost, an info if a few are and the loss is finite all the same."""
        labels = report.model_setup.labels
        if labels is None or not labels.ignored_batches:
            return
        share = labels.ignored_batches / labels.batches
        lost = report.loss is not None and report.loss.nonfinite_steps > 0
        yield self.alert(
            report, THE_DATA, share, self.threshold, "warning" if lost or share >= self.threshold else "info",
            f"all targets are ignore_index in {labels.ignored_batches} of {labels.batches} sampled batches "
            f"({percent(labels.ignored / labels.targets)} of all targets): cross entropy averages over nothing, which is NaN.",
            "Common causes: labels masked as a whole, sequences cut off before their answer, a wrong ignore_index.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class LabelsIgnoredByLoss(Rule):
    """Calls of ``cross_entropy`` or ``nll_loss`` all of whose targets are ``ignore_index``: nothing to average, so NaN.

    As :class:`LabelsIgnored`, for the targets that the function is given: shifted, masked or made in ``training_step``.

    Attributes:
        threshold: Share of its calls that must be ignored as a whole, unless one returned NaN.
    """

    kind: ClassVar[str] = "labels_ignored"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.5

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield a warning if calls are lost, an info if a few are and return a number all the same."""
        for site, stats in report.outputs.items():
            if not stats.ignored_calls:
                continue
            share = stats.ignored_calls / stats.calls
            yield self.alert(
                report, site, share, self.threshold, "warning" if stats.lost_calls or share >= self.threshold else "info",
                f"all targets are ignore_index in {stats.ignored_calls} of its {stats.calls} sampled calls "
                f"({percent(stats.ignored_fraction)} of all targets): it averages over nothing, which is NaN.",
                "Common causes: labels masked as a whole, sequences cut off before their answer, a wrong ignore_index.",
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class BatchRepeated(Rule):
    """The same batch twice and more in a row, within an epoch, or a tensor of it that is drawn at random.

    A data set of one batch has one per epoch and is not judged, nor are batches that come again in the next epoch. PyTorch's
    documentation of ``IterableDataset`` warns of workers that all yield the same data.

    Attributes:
        threshold: Share of the sampled batches whose next batch is the same.
        min_batches: Sampled batches below which a window is not judged.
    """

    kind: ClassVar[str] = "batch_repeated"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.3
    min_batches: int = 3

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert if batches come again."""
        batches = report.model_setup.batches
        if batches.compared < self.min_batches or batches.repeated < self.threshold * batches.compared:
            return
        yield self.alert(
            report, THE_DATA, batches.repeated / batches.compared, self.threshold, "warning",
            f"{batches.repeated} of {batches.compared} sampled batches are the same as the batch after them, or a tensor of theirs "
            f"is (limit {percent(self.threshold)}): the model sees few different samples.",
            "Common causes: workers of an IterableDataset that all yield the same data, loader workers with equal seeds, a buffer "
            "that is not filled again.",
        )  # fmt: skip


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
class IdOutOfRange(Rule):
    """An id that an embedding has no row for, with which training ended. It is looked for on the CPU, in one process."""

    kind: ClassVar[str] = "id_out_of_range"
    urgent: ClassVar[bool] = True

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the embedding."""
        found = report.id_out_of_range
        if found is not None:
            where = in_batch(found.place) if found.place else "its input"
            when = "" if found.batch is None else f", in training batch {found.batch} of the epoch"
            yield self.alert(
                report, found.site, found.id, found.rows, "critical",
                f"id {found.id} in a table of {found.rows} rows, at {list(found.index)} of {where}{when}.",
                "Training ended at this lookup. Common causes: a vocabulary larger than the table, ids of another tokenizer, a "
                "padding of -100 that reaches the model.",
                batch=found.batch,
            )  # fmt: skip


__all__ = ["BatchRepeated", "IdOutOfRange", "LabelsIgnored", "LabelsIgnoredByLoss", "ValidationShift"]

KINDS = (
    Kind(
        name="labels_ignored",
        title="Batches without a label that counts",
        group="Data",
        meaning="All targets of a batch are cross entropy's `ignore_index`. Its mean is over nothing then, which is NaN.",
        formula=(
            "share = sampled batches all of whose targets are ignore_index / sampled batches;\n"
            "        of a cross_entropy: such calls / its calls\n\n"
            "alert if share > 0; a warning if share >= {LabelsIgnored.threshold} or a loss was not finite"
        ),
        severities="warning; info where it is a few batches and the loss is finite",
        advice=("Check the labels of a batch as the loss receives them", "Leave out samples without a label"),
        rank=230,
        measures="share",
        spreads=from_first(lambda node: node.number),  # as the loss sees them, and as the batch has them
    ),
    Kind(
        name="batch_repeated",
        title="The same batch again and again",
        group="Data",
        meaning=(
            "A training batch, or one of its tensors that otherwise changes, is the same as in the batch after it, to the bit, "
            "again and again within an epoch."
        ),
        formula=(
            "share = sampled batches that are the same as the next batch of the epoch / sampled batches\n"
            "        the same: all tensors, or one of floating-point numbers (32 and more different ones) that changes at times\n\n"
            "alert if share >= {BatchRepeated.threshold}, of at least {BatchRepeated.min_batches} sampled batches"
        ),
        severities="warning",
        advice=(
            "Split the data by torch.utils.data.get_worker_info() in an IterableDataset",
            "Draw with torch's generator, or seed each loader worker with torch.initial_seed()",
            "Compare two batches of the loader",
            "Where batches are repeated on purpose, mute this with rules=['-batch_repeated']",
        ),
        rank=240,
        measures="share",
    ),
    Kind(
        name="validation_shift",
        title="Validation data unlike the training data",
        group="Data",
        meaning="The model's input has a different size in validation than in training. Usually one of the two is not normalised.",
        formula=(
            "ratio = rms(model input in validation) / rms(model input in training)\n\n"
            "alert if max(ratio, 1 / ratio) > {ValidationShift.factor}"
        ),
        severities="warning",
        advice=("Use the same transforms and units for training and validation",),
        rank=1420,
    ),
    Kind(
        name="id_out_of_range",
        title="An id beyond the table of an embedding",
        group="Data",
        meaning=(
            "Training ended because an embedding was given an id that it has no row for. The alert names the id, the table and "
            "where in the batch the id is. It is read from the exception on the CPU, in training of one process; on CUDA the "
            "failed lookup has ended the device's context, and nothing can be read: train on the CPU for a moment to see it."
        ),
        formula="alert if training ended in a lookup (F.embedding, F.embedding_bag) whose id is < 0 or >= rows of the table",
        severities="critical",
        advice=(
            "Make the table as large as the vocabulary (num_embeddings, resize_token_embeddings of transformers)",
            "Encode the data with the tokenizer that the table was made for",
            "Replace padding such as -100 before the model is called",
        ),
        rank=100,
    ),
)

RULES = (LabelsIgnored(), LabelsIgnoredByLoss(), BatchRepeated(), ValidationShift(), IdOutOfRange())
