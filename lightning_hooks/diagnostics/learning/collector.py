"""Records, in sampled steps, what of a training learns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.measured import MeasuredLoss
from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.learning.report import LearningReport, learning_report
from lightning_hooks.diagnostics.learning.steps import SEEN, ConstantTable, MeasuredSteps, read_steps
from lightning_hooks.diagnostics.learning.table import GradientSample, LearningColumn, LearningTable
from lightning_hooks.statistics.reduction import added
from lightning_hooks.statistics.tables import HostNumbers, PackedTable, Tables

NOT_ASKED = "steps are run again with learning=True only"
"""Why nothing is measured by running a step again, by default."""


class LearningWatch:
    """Follows what each parameter brings.

    Args:
        context: Its collector's part of the session.
        tables: The places of the tables of embeddings.

    Attributes:
        tables: Of the window under way.
        detailed: Whether the last sampled batch is one of those in which costly numbers are taken.
        under_way: What was read of the steps under way, by the place of their optimizer.
    """

    def __init__(self, context: Context, tables: set[int | None]) -> None:
        self._context, self._host, self._embeddings = context, context.host, tables
        self._on = context.learning is not False
        device = context.host.setup.device
        self._table = LearningTable(len(context.steps.names) if self._on else 0, device)
        self._constant = ConstantTable(device)
        self._sizes = [0.0, 0.0, 0.0]  # batches whose size is known, their samples, optimizers that stepped besides the first
        self._places: dict[int, Tensor] = {}  # of the elements of a parameter, by how many there are
        self._steps = MeasuredSteps()
        self._predicted: Tensor | None = None  # gain of the last step that was measured by running it again, and its error
        self.under_way: dict[int, GradientSample] = {}
        self._before: dict[int, tuple[Any, Tensor]] = {}  # of each optimizer, the gradient's sample in the measured step before
        self._stepped: set[int] = set()
        self.detailed = False
        sizes = HostNumbers(lambda: self._sizes, added, load=lambda found: self._sizes.__setitem__(slice(None), found))
        known: dict[str, PackedTable] = {"rows": self._table, "constant": self._constant, "sizes": sizes}
        self.tables = Tables(device, **known, steps=self._steps.table) if self._on else Tables(device)
        self.gradients = context.guard(self._gradients, "what a step is predicted to gain")
        self.taken = context.guard(self._taken, "what a step is predicted to gain")
        self.batch_start = context.guard(self._batch_start, "the size of the batch")
        if context.learning is True:
            context.measure.open(self._measured)
        if self._on and context.functional is not None and context.functional.used:
            context.on_call(SEEN, self._constant.record, detailed=False)

    def _batch_start(self, batch: BatchTensors) -> None:
        """A sampled batch starts."""
        self.detailed = self._context.gate.in_detail
        if not self._on:
            return
        size = largest = 0
        for _, tensor in batch:
            if tensor.dim() and (not size or tensor.numel() > largest):
                size, largest = len(tensor), tensor.numel()
        self._sizes[0] += size > 0
        self._sizes[1] += size * self._host.loss_scaling.accumulation

    def _gradients(self, step: Step, sampled: bool = True) -> None:
        """The gradients of a step are ready, and not clipped; ``sampled``: it counts in the window."""
        measuring = self._context.measure.measuring
        if self._on and ((sampled and self.detailed) or measuring) and step.indices and step.shards is None:
            self.under_way[step.optimizer] = GradientSample(step, self._embeddings, self._places)

    def _measured(self, measured: MeasuredLoss) -> None:
        """The batch of a step was run again."""
        predicted, self._predicted = self._predicted, None
        if predicted is not None:
            self._steps.add(measured, *predicted.tolist())

    def _taken(self, step: Step, valid: Tensor | None, sampled: bool = True) -> None:
        """A step was taken."""
        sample = self.under_way.pop(step.optimizer, None)
        if sample is None:
            return
        if self._context.measure.measuring:
            numbers = sample.rows(None)
            error = torch.linalg.vector_norm(numbers[:, LearningColumn.ERROR])
            self._predicted = torch.stack((numbers[:, LearningColumn.GAIN].sum(), error))
        if not (sampled and self.detailed):
            return
        self._stepped.add(step.optimizer)
        self._sizes[2] = float(len(self._stepped) - 1)
        key, before = self._before.get(step.optimizer, (None, None))
        rows = sample.rows(before if key == sample.key else None)
        self._before[step.optimizer] = sample.key, sample.paired.clone()
        self._table.add(sample.places.to(rows.device, non_blocking=True), rows, valid)

    def skipped(self, step: Step) -> None:
        """A step was not taken."""
        self.under_way.pop(step.optimizer, None)

    def follow(self) -> None:
        """There are new parameters, or other optimizers."""
        self.under_way, self._before, self._stepped = {}, {}, set()
        if self._on:
            self._table.grow(len(self._context.steps.names))

    def read(self, packed: Tensor) -> LearningReport | None:
        """Make the report of packed tables on the host; None where it is turned off."""
        if not self._on:
            return None
        parts, setup = self.tables.split(packed), self._host.setup
        batches, samples, others = parts["sizes"].tolist()
        why_not: dict[str, str] = {}
        if self._context.steps.shards is not None:
            why_not["predicted_gain"] = "each rank holds a shard of the parameters"
        elif others:
            why_not["predicted_gain"] = "several optimizers step, each for a loss of its own"
        size = samples / batches * setup.data_parallel_size if batches else None
        over, constant, why = self._constant.read(parts["constant"])
        fields, reasons = read_steps(
            parts["steps"].tolist(), self._context.measure.why_not if self._context.learning is True else NOT_ASKED
        )
        why_not |= {**reasons, **({"over_constant": why} if why else {})}
        report = learning_report(self._context.steps.names, self._table.lines(parts["rows"]), size, why_not)
        return dataclasses.replace(report, over_constant=over, constant_loss=constant, **fields)

    def reset(self) -> None:
        """A new window starts."""
        self._sizes = [0.0, 0.0, 0.0]

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from."""
        return {"before": dict(self._before), "steps": self._steps.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the :meth:`state` of an earlier run."""
        self._before = dict(state.get("before", {}))
        self._steps.load(state.get("steps", {}))
