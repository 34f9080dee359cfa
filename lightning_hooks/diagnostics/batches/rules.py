"""Batches: labels all ignored, batches that repeat, features of very different sizes, ids out of range; and ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent, where
from lightning_hooks.diagnostics.batches.hashes import BatchCounts
from lightning_hooks.diagnostics.causes import code, data
from lightning_hooks.diagnostics.ranks import TOLERANCE
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport

THE_DATA = "the data"


class LabelsIgnored(Rule, kind="labels_ignored", shares=("threshold",)):
    """Targets that are all ``ignore_index``: cross entropy has nothing to average, and gives NaN.

    PyTorch's documentation of ``CrossEntropyLoss``: the mean is over the targets that are not ignored. Counted are batches as the
    data have them, and calls of ``cross_entropy`` or ``nll_loss``, whose targets may be shifted, masked or made in
    ``training_step``.

    Attributes:
        threshold: Share of the sampled batches, or calls, that must be ignored as a whole, unless a loss was not finite.
    """

    threshold: float = 0.5

    def __call__(self, report: FeatureReport | GradientFlowReport) -> Alerts:
        for site, ignored, of, what, targets, lost in _ignored(report):
            if ignored:
                many = ignored / of >= self.threshold
                yield self.finding(
                    report, site, ignored / of, self.threshold * many,
                    f"all targets are ignore_index in {ignored} of {what} ({percent(targets)} of all targets): "
                    f"{('it', 'cross entropy')[site == THE_DATA]} averages over nothing, which is NaN.",
                    conclusive=lost or many,
                )  # fmt: skip


def _ignored(report: FeatureReport | GradientFlowReport) -> Iterator[tuple[str, int, int, str, float, bool]]:
    """Per site how many are ignored, of how many, these in words, the share of all targets, and whether a loss was not finite."""
    if isinstance(report, FeatureReport):
        for site, stats in report.outputs.items():
            what = f"its {stats.calls} sampled calls"
            yield site, stats.ignored_calls, stats.calls, what, stats.ignored_fraction, bool(stats.lost_calls)
    elif (labels := report.model_setup.labels) is not None:
        lost = report.loss is not None and report.loss.nonfinite_steps > 0
        what = f"{labels.batches} sampled batches"
        yield THE_DATA, labels.ignored_batches, labels.batches, what, labels.ignored / labels.targets, lost


class BatchRepeated(Rule, kind="batch_repeated", shares=("threshold",)):
    """The same batch twice and more in a row, within an epoch, or a tensor of it that is drawn at random.

    A data set of one batch has one per epoch and is not judged, nor are batches that come again in the next epoch. PyTorch's
    documentation of ``IterableDataset`` warns of workers that all yield the same data. Where every batch is one and the
    same sample, that sample is what is fitted, as a picture or a scene may be: an info.

    Attributes:
        threshold: Share of the sampled batches whose next batch is the same.
    """

    threshold: float = 0.3
    min_batches: ClassVar[int] = 3  # sampled batches below which a window is not judged

    def __call__(self, report: GradientFlowReport) -> Alerts:
        batches = report.model_setup.batches
        if batches.compared >= self.min_batches and batches.repeated >= self.threshold * batches.compared:
            one_sample = batches.repeated == batches.compared and report.learning is not None and report.learning.batch_size == 1
            yield self.finding(
                report, THE_DATA, batches.repeated / batches.compared, self.threshold,
                f"{batches.repeated} of {batches.compared} sampled batches are the same as the batch after them, or a tensor of "
                f"theirs is (limit {percent(self.threshold)}): the model sees few different samples.",
                conclusive=not one_sample,
            )  # fmt: skip


class FewSamples(Rule, kind="batch_repeated"):
    """Few samples of which a batch holds copies, and that come again and again within an epoch, in other batches.

    An epoch reads each sample once. One that goes through few data several times has no copies in a batch; one that draws with
    replacement, or a rare class more often, has more different samples; copies of a prompt are in one batch alone. Samples of few
    possible values, such as the states of a game, are not compared, and augmentation makes others of each.
    """

    most: ClassVar[int] = 32  # different samples that there may be
    share: ClassVar[float] = 0.6  # of the samples of later batches that must have come before
    copies: ClassVar[float] = 0.05  # of these that must be copies of one before in their own batch
    min_samples: ClassVar[int] = 16  # samples of later batches that there must be, and as many as are different

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for _, found in where({THE_DATA: report.model_setup.batches}, self._holds):
            yield self.finding(
                report, THE_DATA, found.seen / found.samples, self.share,
                f"{found.seen} of {found.samples} samples had come in an earlier batch of the same epoch (limit "
                f"{percent(self.share)}), {found.copies} are copies of others of their own batch, and no more than "
                f"{found.distinct} that were read are different.",
                advice=("Let __getitem__ use the index that it is given, over all samples", "Count the samples of an epoch"),
            )  # fmt: skip

    def _holds(self, found: BatchCounts) -> bool:
        few = 1 < found.distinct <= min(self.most, found.samples) and not found.repeated and found.samples >= self.min_samples
        return few and found.seen > self.share * found.samples and found.copies > self.copies * found.samples


class FeatureScale(Rule, kind="feature_scale"):
    """A linear layer that is given raw data of which one feature is many times as large as the others.

    What comes out is a function of that feature alone, and the weights of the others get next to no gradient.

    Attributes:
        ratio: Root mean square of the largest feature over the median of all, above which it counts.
    """

    ratio: float = 1e3

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, scales in where(report.feature_scales, lambda scales: scales.ratio > self.ratio):
            yield self.finding(
                report, site, scales.ratio, self.ratio,
                f"feature {scales.feature} of the {scales.features} that it is given is {scales.ratio:.2g} times as large as "
                f"the median of them (limit {self.ratio:g}): its root mean square is {scales.rms:.2g}.",
            )  # fmt: skip


class InputSize(Rule, kind="feature_scale"):
    """Raw data that are far larger than 1 as the first layer is given them: they saturate gates, and drown what is learned.

    A module without weights, such as one that takes the logarithm, may make them smaller.

    Attributes:
        rms: Their root mean square, above which it counts: bytes have 150, and a few healthy trainings up to 70.
    """

    rms: float = 100.0

    def __call__(self, report: FeatureReport) -> Alerts:
        layer = report.first_layer
        given = {part: stats for part, stats in report.layer_inputs.items() if part == "training" and layer in report.initial_gains}
        for _, stats in where(given, lambda stats: stats.rms > self.rms):
            yield self.finding(
                report, layer, stats.rms, self.rms,
                f"what it is given has a root mean square of {stats.rms:.3g} (limit {self.rms:g}), where a size of 1 is usual.",
            )  # fmt: skip


class Placeholder(Rule, kind="feature_scale"):
    """Inputs whose largest number stands for what is missing in many data sets, such as -999, among numbers that are far smaller.

    Attributes:
        ratio: That number over the root mean square of all, above which it counts: one of four numbers may be missing.
    """

    ratio: float = data.FAR_NINES

    def __call__(self, report: FeatureReport) -> Alerts:
        value, times = data.farthest(report)
        if value in data.NINES and times > self.ratio:
            yield self.finding(
                report, THE_DATA, times, self.ratio,
                f"batch{report.input_place} holds {value:g}, which stands for what is missing in many data sets: it is "
                f"{times:.3g} times the root mean square of all its numbers (limit {self.ratio:g}).",
                advice=("Replace it by the mean of the feature, and add a feature that says where it was missing",),
            )  # fmt: skip


class IdOutOfRange(Rule, kind="id_out_of_range", urgent=True):
    """An id that an embedding has no row for, with which training ended. It is looked for on the CPU, in one process."""

    def __call__(self, report: FeatureReport) -> Alerts:
        found = report.id_out_of_range
        if found is not None:
            yield self.finding(
                report, found.site, found.id, found.rows * (found.id >= 0),
                f"id {found.id} in a table of {found.rows} rows, at {list(found.index)} of {found.where}.",
                batch=found.batch,
            )  # fmt: skip


class RanksDiffer(Rule, kind="ranks_differ", shares=("threshold",)):
    """Parameters that differ between ranks under DDP, or whose gradients do after the reduction.

    "Parameters are never broadcast between processes. The module performs an all-reduce step on gradients and assumes that they
    will be modified by the optimizer in all processes in the same way" (PyTorch on DistributedDataParallel): where that does not
    hold, nothing brings ranks together again. The threshold leaves room for rounding, by some 1e-7 for float32.

    Attributes:
        threshold: Relative difference.
    """

    threshold: float = TOLERANCE

    def __call__(self, report: GradientFlowReport) -> Alerts:
        found = report.ranks_differ
        if found is not None and found.difference > self.threshold:
            number, limit = getattr(found, found.what), percent(self.threshold)
            share = f"{percent(found.difference)} (limit {limit}), at {number} of {found.compared} parameters"
            message = _DIFFERENCES[found.what].format(share)
            yield self.finding(report, found.parameter, found.difference, self.threshold, message)


_DIFFERENCES = {
    "gradients": "its gradient still differs between ranks after the reduction, by {}: each trains a model of its own.",
    "weights": "its weights differ between ranks, by about {}; gradients agree, as far as they were measured.",
}


class RanksSameBatch(Rule, kind="ranks_same_batch"):
    """All ranks get the same batches: several devices do the work of one.

    PyTorch's documentation of ``DistributedSampler``: each process loads a subset of the data that is exclusive to it. Ranks that
    share a batch under tensor parallelism are not compared, nor are data that are one batch only.
    """

    min_batches: ClassVar[int] = 3  # different batches that must be the same on all ranks

    def __call__(self, report: GradientFlowReport) -> Alerts:
        batches = report.model_setup.batches
        if batches.ranks > 1 and batches.same_on_ranks == batches.rank_batches and batches.different >= self.min_batches:
            yield self.finding(
                report, THE_DATA, 1.0, 1.0,
                f"all {batches.ranks} ranks got the same batch in {batches.same_on_ranks} of {batches.rank_batches} sampled "
                "batches: their gradients are the same, and training is as with one rank.",
            )  # fmt: skip


__all__ = [
    "BatchRepeated",
    "FeatureScale",
    "FewSamples",
    "IdOutOfRange",
    "InputSize",
    "LabelsIgnored",
    "Placeholder",
    "RanksDiffer",
    "RanksSameBatch",
]

KINDS = (
    Kind(
        "labels_ignored", "Batches without a label that counts", group="Data", states="fact", measures="share",
        causes=(code.labels_lost,),
        meaning="All targets of a batch are cross entropy's `ignore_index`. Its mean is over nothing then, which is NaN.",
        formula="share = sampled batches all of whose targets are ignore_index / sampled batches;\n"
        "        of a cross_entropy: such calls / its calls\n\n"
        "alert if share > 0; a warning if share >= {LabelsIgnored.threshold} or a loss was not finite",
        inconclusive="where it is a few batches and the loss is finite",
        advice=("Check the labels of a batch as the loss receives them", "Leave out samples without a label"),
    ),
    Kind(
        "batch_repeated", "The same batch again and again", group="Data", states="fact", measures="share",
        causes=(data.constant_data, code.SAME_BATCHES),
        meaning="A training batch, or one of its tensors that otherwise changes, is the same as in the batch after it, to the "
        "bit, again and again within an epoch. Or batches hold few different samples, with copies.",
        formula="share = sampled batches that are the same as the next batch of the epoch / sampled batches\n"
        "        the same: all tensors, or one of floating-point numbers (32 and more different ones) that changes at times\n\n"
        "alert if share >= {BatchRepeated.threshold}, of at least {BatchRepeated.min_batches} sampled batches\n"
        "or if no more than {FewSamples.most} samples are different, and over {FewSamples.share} of those of later batches, "
        "at least {FewSamples.min_samples} and as many,\n   came in an earlier batch, and over {FewSamples.copies} "
        "are copies of others of their batch",
        inconclusive="where every batch is one and the same sample",
        advice=("Split the data by torch.utils.data.get_worker_info() in an IterableDataset",
            "Draw with torch's generator, or seed each loader worker with torch.initial_seed()",
            "Compare two batches of the loader", "Where batches are repeated on purpose, mute this with rules=['-batch_repeated']"),
    ),
    Kind(
        "feature_scale", "Features of an unusual size", group="Data", states="symptom",
        causes=(data.placeholder, data.large_inputs),
        meaning="A linear layer is given data of which one feature is many times as large as the others. It drowns them: outputs "
        "depend on it alone, and a learning rate that is right for its weights is far too small for theirs. Or all features are "
        "far larger than 1, or one number among the inputs, such as -999, stands for what is missing.",
        formula="size = rms of a feature over the samples of a batch, at a linear layer whose input has no gradient\n\n"
        "alert if max(size) / median(size, of those above 0) > {FeatureScale.ratio}\n"
        "or if rms(input of the first layer) > {InputSize.rms}\n"
        "or if the largest number of the inputs is ±999, ±9999 or ±99999, and > {Placeholder.ratio} * rms of all",
        advice=("Normalise the features, each by its mean and standard deviation over the training data",
            "Leave out an index or id, or give it to an nn.Embedding", "Put an nn.BatchNorm1d before the layer"),
    ),
    Kind(
        "id_out_of_range", "An id beyond the table of an embedding", group="Data", states="fact", about="nonfinite",
        quotes_sample=True,
        meaning="Training ended because an embedding was given an id that it has no row for. The alert names the id, the table "
        "and where in the batch the id is. It is read from the exception on the CPU, in training of one process; on CUDA the "
        "failed lookup has ended the device's context, and nothing can be read: train on the CPU for a moment to see it.",
        formula="alert if training ended in a lookup (F.embedding, F.embedding_bag) whose id is < 0 or >= rows of the table",
        critical=-math.inf,
        advice=("Make the table as large as the vocabulary (num_embeddings, resize_token_embeddings of transformers)",
            "Encode the data with the tokenizer that the table was made for",
            "Replace padding such as -100 before the model is called"),
    ),
    Kind(
        "ranks_differ", "Ranks that no longer train one model", group="Several processes", states="fact", measures="share",
        meaning="Under DDP a parameter, or its gradient after the reduction, is not the same on every rank. Each rank trains a "
        "model of its own, and what is saved is that of rank 0. Local SGD, shards and parameters that DDP ignores are not "
        "compared. It takes two processes, so the fault zoo, whose trainings have one, has no such fault.",
        formula="gradients: norm at the last measured step of the window, after the reduction and before clipping\n"
        "weights:   norm and a weighted sum of some elements, at the end of the window\n\n"
        "alert if (largest of any rank - smallest) / largest > {RanksDiffer.threshold}",
        critical=0.0,
        advice=("Call self.manual_backward(loss), not loss.backward(), and the model as this LightningModule holds it",
            "Unfreeze parameters before fit, under ddp_find_unused_parameters_true if they are used later only",
            "Change weights, gradients and optimizers on every rank alike, or broadcast what one rank loads"),
    ),
    Kind(
        "ranks_same_batch", "The same batch on all ranks", group="Several processes", states="fact", measures="nothing",
        meaning="All ranks of a distributed training get the same batches. Their gradients are the same, so more ranks do not "
        "help.",
        formula="alert if the sampled batches are the same on all ranks, and at least {RanksSameBatch.min_batches} of them differ\n"
        "      from one another",
        advice=("Leave use_distributed_sampler=True, or pass a DistributedSampler", "Split the data by rank in an IterableDataset"),
    ),
)  # fmt: skip
