"""The inputs of ``cross_entropy`` and ``nll_loss``: what their numbers look like, and how many labels count."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls
from lightning_hooks.hooks.tensors import in_memory, plain_values
from lightning_hooks.statistics.columns import MAXIMUM, MAXIMUM_OR_NONE, MINIMUM_OR_NONE, SUM, Columns, row_dtype

MOST_ROWS = 256  # rows of a call that are measured, evenly spaced
MOST_NUMBERS = 1 << 17  # logits of a call that are measured: of large vocabularies fewer rows, at least ``FEWEST_ROWS``
FEWEST_ROWS = 8
MOST_CLASSES = 16  # classes for which it is found out along which dimension logarithms of probabilities are normalised
FEWEST_COMPARED = 4  # rows of a call that are compared, at least
SAME = 1e-5  # rows are the same where none of their numbers differs by more than this share of what numbers differ by within a row
CERTAIN = 0.99  # share of the rows that must be probabilities, or their logarithms, for the input to be that
MANY_ZEROS = 0.05  # share of the logits that must be exactly 0 for a rectifier
EDGE = 0.01  # logits must come so close to both -1 and 1, and not pass them, for a tanh or a cosine
FEWEST_LOGITS = 256
FAR = 0.05  # how far the sum of the probabilities of a target may be from 1


@dataclass(frozen=True, slots=True)
class OutputStats:
    """What the calls of one cross entropy were given, over the sampled batches of a window, all ranks pooled.

    Logits are measured on evenly spaced rows of each call, at most 256, of large vocabularies fewer; rows that are ignored or hold
    NaN or infinity do not count. A row is one distribution over the classes: of a sample, a token or a pixel.

    Attributes:
        calls: How often it was called.
        rows: Rows that were measured.
        classes: The number of classes; of several, the largest.
        max_logit: The largest logit; NaN without rows.
        min_logit: The smallest logit.
        zero_fraction: Share of the logits that are exactly 0, in [0, 1], of ``classes`` in each row.
        probabilities: Share of the rows that are probabilities: none below 0, sum 1.
        log_probabilities: Share of the rows that are logarithms of probabilities: ``logsumexp(logits)`` is 0.
        mixed_signs: Share of the rows with numbers below 0 and above it.
        same: Calls whose measured rows, four at least, are the same but for roundings, though their numbers differ within a row.
        across: Calls of ``nll_loss`` whose input is normalised along another dimension than that of the classes.
        ignored_fraction: Share of all labels that are ``ignore_index``, in [0, 1]; NaN where targets are probabilities.
        ignored_calls: Calls all of whose labels are.
        lost_calls: Those of them that returned NaN or infinity.
        accuracy: Share of the measured rows whose largest logit is at the label.
        unnormalized: Share of the measured rows whose target is a row of numbers that do not sum to 1, nor all to 0.
        frequent_weight: Mean weight of the labels over that of the classes; NaN where the loss does not weigh classes.
        smoothing: Mean ``label_smoothing`` of the calls.
        first_loss: The cross entropy of the measured rows of the training's first call; NaN in later windows, and where targets are
            probabilities.
    """

    calls: int
    rows: int
    classes: int
    max_logit: float
    min_logit: float
    zero_fraction: float
    probabilities: float
    log_probabilities: float
    mixed_signs: float
    same: int
    across: int
    ignored_fraction: float
    ignored_calls: int
    lost_calls: int
    accuracy: float
    unnormalized: float = 0.0
    first_loss: float = math.nan
    frequent_weight: float = math.nan
    smoothing: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether there were enough numbers to say what they are."""
        return self.classes > 1 and self.rows * self.classes >= FEWEST_LOGITS

    @property
    def form(self) -> str:
        """What its numbers look like: ``probabilities``, ``logarithms`` of these, ``rectified`` or ``bounded``; else empty."""
        low, high = self.min_logit, self.max_logit
        forms = {
            "probabilities": self.probabilities >= CERTAIN,
            "logarithms": self.log_probabilities >= CERTAIN and high <= 0,
            "rectified": low == 0 < high and self.zero_fraction >= MANY_ZEROS,  # a head may start at zero
            "bounded": self.classes > 2 and abs(low + 1) <= EDGE and 1 - EDGE <= high <= 1,
        }
        return next((form for form, holds in forms.items() if holds and self.enough), "")


class OutputColumn(Columns):
    """What each number of a row holds."""

    CALLS = SUM
    ROWS = SUM  # measured rows that count
    ZEROS = SUM  # logits that are exactly 0
    PROBABILITIES = SUM  # rows
    LOG_PROBABILITIES = SUM  # rows
    MIXED_SIGNS = SUM  # rows
    CORRECT = SUM  # rows
    UNNORMALIZED = SUM  # rows
    LABELS = SUM  # labels of all rows
    IGNORED = SUM  # of them ignored
    IGNORED_CALLS = SUM
    LOST_CALLS = SUM
    SAME = SUM  # calls
    ACROSS = SUM  # calls
    FIRST_LOSS = SUM  # over the rows of the training's first call
    FIRST_ROWS = SUM
    WEIGHT = SUM  # of labels, by the weights of their classes
    CLASS_WEIGHT = SUM  # as many times the mean of the classes
    SMOOTHING = SUM  # over calls
    CLASSES = MAXIMUM
    MAX_LOGIT = MAXIMUM_OR_NONE
    MIN_LOGIT = MINIMUM_OR_NONE


_SIZES = [int(OutputColumn.CLASSES), 2, 1]  # sums, maxima, the minimum

CLASSIFICATION = ("cross_entropy", "nll_loss")  # the losses with classes for targets
MOST_LOSSES = 16  # losses of a model that a table holds, at most


class LossInputs(CallTable):
    """The inputs of each ``cross_entropy`` and ``nll_loss``."""

    columns = OutputColumn
    functions: ClassVar[tuple[str, ...]] = CLASSIFICATION

    def __init__(self, functional: FunctionalCalls, context: Context) -> None:
        super().__init__(functional, MOST_LOSSES, context.host.setup.device)
        self._context, self._begun = context, False  # whether a call of this run has been recorded
        context.on_call(CLASSIFICATION, self._record)

    def _record(self, call: FunctionalCall) -> None:
        index, given, target = self.index_of(call), call.arguments.get("input"), call.arguments.get("target")
        if index is not None and isinstance(given, Tensor) and isinstance(target, Tensor) and not hasattr(type(given), "to_local"):
            ignored = call.arguments.get("ignore_index", -100)
            first = not self._begun and self._context.host.position.global_step == 0  # not of a resumed run
            self._begun = True
            logits = plain_values(given)
            if logits.numel() and logits.is_floating_point():
                self.add(index, measure(logits, plain_values(target), ignored, call.output, call.function == "nll_loss", first))
            weights = class_weights(call.arguments.get("weight"), target, ignored)
            if weights is not None:
                self.rows[index, OutputColumn.WEIGHT : OutputColumn.SMOOTHING] += weights.to(self.rows)
            if smoothing := call.arguments.get("label_smoothing"):
                self.rows[index, OutputColumn.SMOOTHING] += smoothing

    def add(self, index: int, row: Tensor) -> None:
        """Record what :func:`measure` gives of a call. No host sync; no tensor is kept."""
        (sums, maxima, minimum), new = torch.split(self.rows[index], _SIZES), torch.split(row.to(self.rows), _SIZES)
        sums += new[0]
        torch.maximum(maxima, new[1], out=maxima)
        torch.minimum(minimum, new[2], out=minimum)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        return {"outputs": {name: output_stats(row) for name, row in self.named_lines(packed) if row[OutputColumn.CALLS]}}


def measure(
    logits: Tensor,
    target: Tensor,
    ignore_index: int = -100,
    loss: Tensor | None = None,
    of_logarithms: bool = False,
    first: bool = False,
) -> Tensor:
    """The row of one call, shape ``(len(OutputColumn),)``, in float64 where the device has it.

    Args:
        logits: As ``torch.nn.functional.cross_entropy`` takes them: ``(C)``, ``(N, C)`` or ``(N, C, …)``.
        target: Labels, or probabilities of the shape of the logits.
        ignore_index: The label that does not count.
        loss: What the call returned.
        of_logarithms: Whether logarithms of probabilities are expected, as by ``nll_loss``.
        first: Whether it is the training's first call.
    """
    as_labels = target.dtype in _INTEGERS
    taken, labels = sampled_rows(logits, target)
    dtype, tolerance = row_dtype(logits.device), _tolerance(logits.dtype)
    x = taken if taken.dtype in (torch.float32, dtype) else taken.float()
    log_z = x.logsumexp(-1)
    high, guess = x.max(-1)
    low = torch.where(x > -torch.inf, x, torch.inf).amin(-1)  # a class that is masked out has the logit -inf
    named = labels if as_labels else labels.argmax(-1)
    counts = log_z.isfinite() & (labels != ignore_index) if as_labels else log_z.isfinite()
    of_rows = torch.stack(
        (
            torch.ones_like(log_z),
            (x == 0).sum(-1),
            ((x.sum(-1) - 1).abs() <= tolerance) & (low >= 0),
            (log_z.abs() <= tolerance) & (high <= 0),
            (low < 0) & (high > 0),
            guess == named,
            torch.zeros_like(log_z) if as_labels else _unnormalized(labels),
        )
    )
    sums = torch.where(counts, of_rows, 0.0).sum(1, dtype=dtype)
    maxima = torch.where(counts, torch.stack((high, -low)), -torch.inf).amax(1).to(dtype)
    of_labels = torch.zeros(4, dtype=dtype, device=logits.device)
    if as_labels:
        ignored = (target == ignore_index).sum()
        whole = ignored == target.numel()
        lost = whole & ~loss.sum().isfinite() if loss is not None else torch.zeros_like(whole)
        of_labels = torch.stack((torch.full_like(ignored, target.numel()), ignored, whole, lost)).to(dtype)
    across = (is_across(logits) if of_logarithms else sums.new_zeros(())).to(dtype)
    same = same_rows(x, counts).to(dtype)
    call, classes = sums.new_ones(1), sums.new_full((1,), x.shape[-1])
    began, later = sums.new_zeros(2), sums.new_zeros(3)
    if first and as_labels:
        of_label = log_z - x.gather(1, named.to(torch.int64).clamp(0, x.shape[-1] - 1)[:, None])[:, 0]
        began = torch.stack((torch.where(counts, of_label, 0.0).sum(dtype=dtype), counts.sum(dtype=dtype)))
    return torch.cat((call, sums, of_labels, same[None], across[None], began, later, classes, maxima[:1], -maxima[1:]))


def class_weights(weight: Any, target: Tensor, ignored: int) -> Tensor | None:
    """The weights of the labels that count, added up, and as many times the mean weight of the classes; None without weights.

    A class of weight 0 does not count, and class probabilities are not judged.
    """
    if not in_memory(weight) or weight.dim() != 1 or target.is_floating_point() or not weight.numel():
        return None
    weights, labels = weight.detach(), target.reshape(-1)
    counts = (labels != ignored) & (labels >= 0) & (labels < len(weights))
    each = weights[labels.clamp(0, len(weights) - 1)] * counts
    mean = weights.sum() / (weights > 0).sum().clamp_min(1)
    return torch.stack((each.sum(), mean * (each > 0).sum()))


def _unnormalized(targets: Tensor) -> Tensor:
    """Whether the probabilities of each row sum to something other than 1; not of rows of zeros, which count for nothing."""
    totals = targets.float().sum(-1)
    return ((totals - 1).abs() > FAR) & (totals != 0)


def same_rows(rows: Tensor, counts: Tensor) -> Tensor:
    """Whether the rows that count are all the same but for roundings, shape ``()``; not if they are few, or of one number each."""
    counted = counts[:, None] & rows.isfinite()
    high, low = torch.where(counted, rows, -torch.inf), torch.where(counted, rows, torch.inf)
    between, within = high.amax(0) - low.amin(0), high.amax(1) - low.amin(1)
    spread = within.nan_to_num(0.0, 0.0, 0.0).amax()
    return (counts.sum() >= FEWEST_COMPARED) & (spread > 0) & (between.nan_to_num(0.0, 0.0, 0.0).amax() <= SAME * spread)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def sampled_rows(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Evenly spaced rows of the logits, shape ``(rows, C)``, and what belongs to them of the target."""
    soft = target.shape == logits.shape
    if logits.dim() == 1:
        logits, target = logits[None], target[None]
    of_samples = logits.reshape(*logits.shape[:2], -1)
    samples, classes, inner = of_samples.shape
    targets = target.reshape(of_samples.shape if soft else (samples, inner))
    rows = samples * inner
    taken = min(rows, MOST_ROWS, max(FEWEST_ROWS, MOST_NUMBERS // classes))
    if inner == 1 and taken == rows:
        return of_samples[..., 0], targets[..., 0]
    place = torch.arange(taken, device=logits.device) * rows // taken
    sample, position = place // inner, place % inner
    return of_samples[sample, :, position], targets[sample, :, position] if soft else targets[sample, position]


def is_across(values: Tensor) -> Tensor:
    """Whether logarithms of probabilities are normalised along another dimension than that of the classes, shape ``()``.

    Of some classes, at the first place along each other dimension.
    """
    found = [values.new_zeros((), dtype=torch.bool)]
    for dim in range(values.dim()):
        if dim != 1 and values.dim() > 1 and values.shape[dim] > 1:
            place = tuple(slice(None) if other in (dim, 1) else 0 for other in range(values.dim()))
            lines = values[place] if dim == 0 else values[place].T
            some = lines[:, :: -(-lines.shape[1] // MOST_CLASSES)].float()
            found.append(((some.logsumexp(0).abs() <= _tolerance(values.dtype)) & (some <= 0).all(0)).all())
    return torch.stack(found).any()


def _tolerance(dtype: torch.dtype) -> float:
    """How far the sum of probabilities may be from 1: their rounding."""
    return max(1e-4, 4 * torch.finfo(dtype).eps)


def output_stats(row: Sequence[float]) -> OutputStats:
    """Name the numbers of a row whose CALLS are not 0."""
    of, rows = OutputColumn, row[OutputColumn.ROWS]

    def mean(column: OutputColumn, whole: float = rows) -> float:
        return row[column] / whole if whole else math.nan

    counts = ("calls", "rows", "classes", "same", "across", "ignored_calls", "lost_calls")
    found: dict[str, Any] = {name: int(row[of[name.upper()]]) for name in counts}
    found |= {name: mean(of[name.upper()]) for name in ("probabilities", "log_probabilities", "mixed_signs")}
    found |= {name: row[of[name.upper()]] if rows else math.nan for name in ("max_logit", "min_logit")}
    return OutputStats(
        **found,
        zero_fraction=mean(of.ZEROS, rows * row[of.CLASSES]),
        ignored_fraction=mean(of.IGNORED, row[of.LABELS]),
        accuracy=mean(of.CORRECT),
        unnormalized=row[of.UNNORMALIZED] / rows if rows else 0.0,
        first_loss=mean(of.FIRST_LOSS, row[of.FIRST_ROWS]),
        frequent_weight=mean(of.WEIGHT, row[of.CLASS_WEIGHT]),
        smoothing=mean(of.SMOOTHING, row[of.CALLS]),
    )
