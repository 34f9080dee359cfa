"""Rules over the batches of a window: labels that are all ignored, batches that come again, batches that all ranks get."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import GradientFlowReport

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
class RanksSameBatch(Rule):
    """All ranks get the same batches: several devices do the work of one.

    PyTorch's documentation of ``DistributedSampler``: each process loads a subset of the data that is exclusive to it. Ranks that
    share a batch under tensor parallelism are not compared, nor are data that are one batch only.

    Attributes:
        min_batches: Different batches that must be the same on all ranks.
    """

    kind: ClassVar[str] = "ranks_same_batch"

    min_batches: int = 3

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert if all compared batches are the same on all ranks."""
        batches = report.model_setup.batches
        if batches.ranks > 1 and batches.same_on_ranks == batches.rank_batches and batches.different >= self.min_batches:
            yield self.alert(
                report, THE_DATA, 1.0, 1.0, "warning",
                f"all {batches.ranks} ranks got the same batch in {batches.same_on_ranks} of {batches.rank_batches} sampled "
                "batches: their gradients are the same, and training is as with one rank.",
                "Common causes: use_distributed_sampler=False without a sampler of your own, an IterableDataset that does not "
                "look at its rank.",
            )  # fmt: skip
