"""Whether a training learns, and what of it, over a window: the report, and what records it in sampled steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context, MeasuredLoss
from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.learning.steps import SEEN, UNSURE, ConstantTable, MeasuredSteps, read_steps
from lightning_hooks.diagnostics.learning.table import GradientSample, LearningColumn, LearningTable
from lightning_hooks.statistics.reduction import added
from lightning_hooks.statistics.tables import HostNumbers, PackedTable, Tables

FEWEST_PAIRS = 4  # pairs of successive measured steps that a noise scale needs


@dataclass(frozen=True, slots=True)
class ParameterLearning:
    """What one parameter brings, over the measured steps of a window.

    Attributes:
        steps: Measured optimizer steps.
        gain: The fall of the loss that its updates are predicted to bring, to first order: the sum of minus the dot product of
            gradient and update, as in Loss Change Allocation (Lan et al., 2019).
        error: The standard error of that sum, at most; 0 where all of its elements were taken.
        share: ``gain`` over that of all parameters; below 0 where its updates raise the loss. None where the sum is not positive,
            or its standard error is above 20 % of it.
        coherence: Mean cosine of the gradients of successive measured steps, in [-1, 1]; None without such a pair.
    """

    steps: int
    gain: float
    error: float
    share: float | None = None
    coherence: float | None = None


@dataclass(frozen=True, slots=True)
class LearningReport:
    """Whether the training learns, and what of it. What is not defined is None, and :attr:`why_not` says why.

    Attributes:
        steps: Measured optimizer steps.
        predicted_gain: The fall of the loss that a measured step is predicted to bring, to first order: minus the dot product of
            the gradient, before it is clipped, and the update, with weight decay. Mean over steps and ranks.

        coherence: Mean cosine of the gradients of successive measured steps over all parameters, in [-1, 1].
        noise_scale: The gradient noise scale (McCandlish et al., 2018) in samples: the batch size at which noise and signal of a
            gradient are equally large. Smaller batches learn more from each sample, larger ones need fewer steps.
        batch_size: Samples of an optimizer step: along the first dimension of the batch's largest tensor, over accumulated batches
            and ranks.
        over_constant: The loss over that of the best constant answer, where the loss is one whose targets are seen: 1 and more
            where the model is no better than a constant.
        constant_loss: The loss of the best constant answer, likewise.
        gain: Mean fall of the loss on the batch of a measured step, by that step.
        step_ratio: Median of that over the predicted gain: 1 for steps that are short against the curvature, 0.5 for the best
            length, 0 where a step ends as high as it began, negative where it does harm.
        progress: The fall of the loss on new batches since the first measured step, over the sum of the gains of all steps on their
            own batches, of which the measured ones are a sample.
        reruns: Steps that were measured by running their batch again, since training started.
        parameters: Parameter name to what it brings.
        modules: Module name to the share of the parameters in it, and in the modules in it.
        why_not: Attribute to why it is None.
    """

    steps: int = 0
    predicted_gain: float | None = None

    coherence: float | None = None
    noise_scale: float | None = None
    batch_size: float | None = None
    over_constant: float | None = None
    constant_loss: float | None = None
    gain: float | None = None
    step_ratio: float | None = None
    progress: float | None = None
    reruns: int = 0
    parameters: dict[str, ParameterLearning] = field(default_factory=dict)
    modules: dict[str, float] = field(default_factory=dict)
    why_not: dict[str, str] = field(default_factory=dict)


LEARNING_STATS = ("predicted_gain", "coherence", "noise_scale", "over_constant", "gain", "step_ratio", "progress")
"""What is logged as ``learning/<stat>``."""


def learning_scalars(report: LearningReport | None, known: set[str]) -> dict[str, float]:
    """The values of a report by tag: ``learning/<stat>``.

    To ``known`` are added the tags that have a value: from then on each is there, NaN where it is not defined.
    """
    if report is None:
        return {}
    found: dict[str, float | None] = {f"learning/{stat}": getattr(report, stat) for stat in LEARNING_STATS}
    known.update(tag for tag, value in found.items() if value is not None)
    return {tag: math.nan if (value := found.get(tag)) is None else value for tag in sorted(known)}


def learning_report(
    names: Sequence[str], rows: Sequence[Sequence[float]], batch_size: float | None, why_not: Mapping[str, str]
) -> LearningReport:
    """Name the numbers of a window: of its rows the first is that of all parameters. Shares depend on ``predicted_gain``."""
    column = LearningColumn
    total, *each = rows
    steps = int(total[column.STEPS])
    reasons = dict(why_not)
    if not steps:
        reasons.setdefault("predicted_gain", "no optimizer step was measured")
    known = "predicted_gain" not in reasons
    gain, error = total[column.GAIN], total[column.ERROR]
    divides = known and gain > 0 and error <= UNSURE * gain
    if known and not divides:
        small = f"the standard error of the predicted gain is {error / abs(gain) if gain else math.inf:.0%} of it"
        reasons["share"] = "the updates are predicted to raise the loss" if gain < 0 and error <= -gain * UNSURE else small
    parameters = {
        name: ParameterLearning(
            int(row[column.STEPS]),
            row[column.GAIN],
            row[column.ERROR],
            row[column.GAIN] / gain if divides else None,
            row[column.COSINE] / row[column.PAIRS] if row[column.PAIRS] else None,
        )
        for name, row in zip(names, each, strict=False)
        if row[column.STEPS]
    }
    return LearningReport(
        steps=steps,
        predicted_gain=gain / steps if known else None,
        coherence=total[column.COSINE] / total[column.PAIRS] if total[column.PAIRS] else None,
        noise_scale=_noise_scale(total, batch_size, reasons),
        batch_size=batch_size,
        parameters=parameters,
        modules=_of_modules({name: stats.share for name, stats in parameters.items() if stats.share is not None}),
        why_not=reasons,
    )


def _noise_scale(total: Sequence[float], batch_size: float | None, reasons: dict[str, str]) -> float | None:
    """Of gradients of B samples the mean g₁·g₂ is |G|², the mean |g|² is |G|² + tr(Σ)/B; the scale is tr(Σ)/|G|²."""
    pairs, dot = total[LearningColumn.PAIRS], total[LearningColumn.DOT]
    square = (total[LearningColumn.SQUARE] + total[LearningColumn.BEFORE]) / 2
    if batch_size is None:
        reasons["noise_scale"] = "the size of a batch is not known"
    elif pairs < FEWEST_PAIRS:
        reasons["noise_scale"] = f"it needs {FEWEST_PAIRS} pairs of measured steps; there are {int(pairs)}"
    elif dot <= 0:
        reasons["noise_scale"] = "gradients of successive measured steps do not point the same way: noise is all there is"
    else:
        return max(square - dot, 0.0) / dot * batch_size
    return None


def _of_modules(shares: Mapping[str, float]) -> dict[str, float]:
    """The shares of parameters, summed over each module that holds them, the outermost first."""
    found: dict[str, float] = {}
    for name, share in shares.items():
        for module in accumulate(name.split(".")[:-1], "{}.{}".format):
            found[module] = found.get(module, 0.0) + share
    return found


NOT_ASKED = "steps are run again with learning=True only"  # why nothing is measured by running a step again, by default


class LearningWatch:
    """Follows what each parameter brings.

    Attributes:
        tables: Of the window under way.
        detailed: Whether the last sampled batch is one of those in which costly numbers are taken.
        under_way: What was read of the steps under way, by the place of their optimizer.
    """

    def __init__(self, context: Context, tables: set[int | None]) -> None:
        self._context, self._host, self._embeddings = context, context.host, tables
        self._on = context.learning is not False
        device = context.host.setup.device
        self._table = LearningTable(1 + (len(context.steps.names) if self._on else 0), device)
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
        measured = (sampled and self.detailed) or self._context.measure.measuring
        if self._on and measured and step.indices and step.shards is None:
            self.under_way[step.optimizer] = GradientSample(step, self._embeddings, self._places)

    def _measured(self, measured: MeasuredLoss) -> None:
        predicted, self._predicted = self._predicted, None
        if predicted is not None:
            self._steps.add(measured, *predicted.tolist())

    def _taken(self, step: Step, valid: Tensor | None, sampled: bool = True) -> None:
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
            self._table.grow(len(self._context.steps.names) + 1)

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
