"""What ranks have in common: parameters that differ, batches that are the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.batch_rules import THE_DATA
from lightning_hooks.alerts.rule import Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Kind
from lightning_hooks.reports.windows import GradientFlowReport
from lightning_hooks.statistics.replicas import TOLERANCE


@dataclass(frozen=True, slots=True, eq=False)
class RanksDiffer(Rule):
    """Parameters that differ between ranks under DDP, or whose gradients do after the reduction.

    "Parameters are never broadcast between processes. The module performs an all-reduce step on gradients and assumes that they
    will be modified by the optimizer in all processes in the same way" (PyTorch on DistributedDataParallel): where that does not
    hold, nothing brings ranks together again. The threshold leaves room for rounding, by some 1e-7 for float32.

    Attributes:
        threshold: Relative difference.
    """

    kind: ClassVar[str] = "ranks_differ"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = TOLERANCE

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first parameter that differs."""
        found = report.ranks_differ
        if found is None or found.difference <= self.threshold:
            return
        number = found.gradients if found.what == "gradients" else found.weights
        share = f"{percent(found.difference)} (limit {percent(self.threshold)}), at {number} of {found.compared} parameters"
        if found.what == "gradients":
            message = f"its gradient still differs between ranks after the reduction, by {share}: each trains a model of its own."
            causes = (
                "Common causes: loss.backward() in manual optimisation, a model called past DDP, parameters unfrozen in training, "
                "no_sync at the last batch of an accumulation."
            )
        else:
            message = f"its weights differ between ranks, by about {share}; gradients agree, as far as they were measured."
            causes = (
                "Common causes: weights written or loaded on one rank only, clipping on one rank only, optimizers whose settings "
                "differ."
            )
        yield self.alert(report, found.parameter, found.difference, self.threshold, "critical", message, causes)


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


__all__ = ["RanksDiffer", "RanksSameBatch"]

KINDS = (
    Kind(
        name="ranks_differ",
        title="Ranks that no longer train one model",
        group="Several processes",
        meaning=(
            "Under DDP a parameter, or its gradient after the reduction, is not the same on every rank. Each rank trains a "
            "model of its own, and what is saved is that of rank 0. Local SGD, shards and parameters that DDP ignores are not "
            "compared. It takes two processes, so the fault zoo, whose trainings have one, has no such fault."
        ),
        formula=(
            "gradients: norm at the last measured step of the window, after the reduction and before clipping\n"
            "weights:   norm and a weighted sum of some elements, at the end of the window\n\n"
            "alert if (largest of any rank - smallest) / largest > {RanksDiffer.threshold}"
        ),
        severities="critical",
        advice=(
            "Call self.manual_backward(loss), not loss.backward(), and the model as this LightningModule holds it",
            "Unfreeze parameters before fit, under ddp_find_unused_parameters_true if they are used later only",
            "Change weights, gradients and optimizers on every rank alike, or broadcast what one rank loads",
        ),
        rank=200,
        measures="share",
    ),
    Kind(
        name="ranks_same_batch",
        title="The same batch on all ranks",
        group="Several processes",
        meaning=(
            "All ranks of a distributed training get the same batches. Their gradients are the same, so more ranks do not help."
        ),
        formula=(
            "alert if the sampled batches are the same on all ranks, and at least {RanksSameBatch.min_batches} of them differ\n"
            "      from one another"
        ),
        severities="warning",
        advice=("Leave use_distributed_sampler=True, or pass a DistributedSampler", "Split the data by rank in an IterableDataset"),
        rank=250,
        measures="nothing",
    ),
)

RULES = (RanksDiffer(), RanksSameBatch())
