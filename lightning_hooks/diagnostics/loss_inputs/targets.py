"""The inputs of losses with numbers for targets, such as ``mse_loss`` and ``kl_div``, and which targets are ignored."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.loss_inputs.predictions import FEWEST_COMPARED, MOST_LOSSES, same_rows
from lightning_hooks.hooks.functions import ALIGNED, BINARY, COUNTED, DIVERGENCE, REGRESSION, SIGNED
from lightning_hooks.hooks.graph import made_by
from lightning_hooks.hooks.tensors import all_values, in_memory
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns, RowTable, row_dtype

IGNORED = -100  # the ``ignore_index`` of PyTorch's losses, and of the models of transformers, where nothing else is set

_LABELS = re.compile(r"label|target", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LabelCounts:
    """Targets that a cross entropy ignores, in the sampled batches.

    Attributes:
        batches: Sampled batches with integer targets.
        ignored_batches: Those of them all of whose targets were -100, the ``ignore_index`` of PyTorch.
        targets: All targets.
        ignored: Those of them that were -100.
    """

    batches: int
    ignored_batches: int
    targets: int
    ignored: int


class LabelColumn(Columns):
    """What each number holds."""

    BATCHES = SUM
    IGNORED_BATCHES = SUM  # all of whose targets are
    TARGETS = SUM
    IGNORED = SUM


class LabelTable(RowTable):
    """Counts the targets in batches, and the batches all of whose targets are ignored, in one row. No host sync."""

    columns = LabelColumn

    def add(self, batch: BatchTensors) -> None:
        """Record the integer tensors of a batch that are the second of a pair, or have "label" or "target" in their key."""
        named = [tensor for place, tensor in batch if place == "[1]" or _LABELS.search(place)]
        labels = [one for one in named if not (one.is_floating_point() or one.is_complex() or one.dtype == torch.bool)]
        counts = [
            torch.stack([(values == IGNORED).sum(), torch.full((), values.numel(), device=values.device)])
            for values in all_values(labels)
            if values.numel()
        ]
        if counts:
            ignored, all_of_them = torch.stack([count.to(self.rows.device) for count in counts]).sum(0)
            row = torch.stack((torch.ones_like(ignored), ignored == all_of_them, all_of_them, ignored))
            self.rows[0] += row.to(self.rows.dtype)

    def read(self, packed: Tensor) -> LabelCounts | None:
        """Name the numbers of a packed table on the host; None where there were no targets."""
        counts = LabelCounts(*map(int, packed.tolist()))
        return counts if counts.batches else None


COMPARED = 8  # samples of a target that are compared with one another, evenly spaced
SAMPLE = 1024  # numbers of each of them, evenly spaced
# Different numbers in a sample from which on it is compared: labels, masks and codes of few values may well be the same.
VARIED = 32

# The weight of positive targets below which they are weighted down; the share of them below which they are rare.
LITTLE, RARE = 0.5, 0.25
NEAR = 0.01  # how far a target may lie outside the bounds of the outputs that it is compared with: rounding, targets just above 1
ROUNDING = 1e-6  # how far a logarithm of a probability may lie above 0
BINARY_CROSS_ENTROPY = "binary cross entropy"
KL_DIVERGENCE = "Kullback-Leibler divergence"
BLANK = "blank of an alignment"
SIGNS = "signs"
RATES = "logarithm of a rate"
POSITIVE = ("exp", "relu", "sigmoid", "softplus")  # functions that give rates, and no logarithms of them
# Functions to the bounds of their values, or, of the losses, of the targets or of the input of ``kl_div``; labels may be any
# but the blank, and signs are -1 and 1; the logarithm of a rate has any sign.
BOUNDS = {
    "sigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "relu": (0.0, math.inf),
    BINARY_CROSS_ENTROPY: (0.0, 1.0),
    KL_DIVERGENCE: (-math.inf, 0.0),
    BLANK: (-math.inf, math.inf),
    SIGNS: (-1.0, 1.0),
    RATES: (-math.inf, math.inf),
}


@dataclass(frozen=True, slots=True)
class TargetStats:
    """What the calls of one loss between numbers, such as ``mse_loss``, were given in the sampled batches of a window.

    Attributes:
        calls: How often it was called.
        paired: Calls that compare more pairs than the input or the target has numbers.
        inputs: Numbers of the input of such a call; the most.
        targets: Numbers of its target; the most.
        pairs: How many pairs it compares; the most.
        compared: Calls whose target was compared with that of the call before: with two samples and more, each of two dimensions
            and more and of at least 32 different numbers.
        constant: Those of them whose samples all had the same target, and the same as before, to the bit.
        bounded: Numbers of targets that were compared with an output with bounds, as a sigmoid's and a tanh's are; all numbers of
            those that a binary cross entropy takes; of ``kl_div`` those of its input, which are logarithms of probabilities; of
            ``ctc_loss`` the labels, or the numbers of its input if one is above 0, of losses with signs for targets these, and of
            ``poisson_nll_loss`` those of an input that cannot be below 0, where it takes logarithms.
        outside: Those of them that such an output cannot come within a hundredth of; of ``kl_div``, and of the input of
            ``ctc_loss``, those above 0; of ``ctc_loss`` the labels that are the blank; signs of 0; all of such rates.
        bound: What bounds them: one of :data:`BOUNDS`, or ``ctc_loss``; empty for nothing.
        same: Calls whose input is the same for all samples but for roundings, of four samples and two numbers each at least, though
            targets differ.
        weighted_down: Share of the columns whose positive targets are rare, and weigh less than half by ``pos_weight``.
    """

    calls: int
    paired: int
    inputs: int
    targets: int
    pairs: int
    compared: int
    constant: int
    bounded: int = 0
    outside: int = 0
    bound: str = ""
    same: int = 0
    weighted_down: float = 0.0

    @property
    def beyond(self) -> str:
        """Where targets are that are outside, in words."""
        low, high = BOUNDS[self.bound]
        return "below 0" if high == math.inf else f"outside of {low:g} to {high:g}"


class TargetColumn(Columns):
    """What each number of a row holds, as :class:`TargetStats` has them."""

    CALLS = SUM
    PAIRED = SUM
    COMPARED = SUM
    CONSTANT = SUM
    OUTSIDE = SUM
    SAME = SUM
    BOUNDED = SUM
    DOWN = SUM  # share of the columns, over calls
    NUMBERS = SUM  # of the input of ``ctc_loss``
    ABOVE = SUM  # of them above 0
    INPUTS = MAXIMUM
    TARGETS = MAXIMUM
    PAIRS = MAXIMUM
    BOUND = MAXIMUM  # the place of what bounds the output in BOUNDS, from 1


# The losses with numbers or signs for targets, and the one with sequences of labels.
TARGETED = (*BINARY, DIVERGENCE, *REGRESSION, ALIGNED, COUNTED, *SIGNED)

_BOUNDED = {**dict.fromkeys(BINARY, BINARY_CROSS_ENTROPY), DIVERGENCE: KL_DIVERGENCE}


class LossTargets(CallTable):
    """The inputs of each loss with numbers for targets."""

    columns = TargetColumn
    functions: ClassVar[tuple[str, ...]] = TARGETED

    def __init__(self, functional: FunctionalCalls, context: Context) -> None:
        super().__init__(functional, MOST_LOSSES, context.host.setup.device)
        self._before: dict[int, Tensor] = {}  # of the last target of each loss, some numbers of its first sample
        context.on_call(TARGETED, self._record)

    def _record(self, call: FunctionalCall) -> None:
        index, given, target = self.index_of(call), call.arguments.get("input"), call.arguments.get("target")
        if index is not None and call.function == ALIGNED:
            labels, lengths, given = map(call.arguments.get, ("targets", "target_lengths", "log_probs"))
            if in_memory(labels) and labels.numel():
                self.add_labels(index, labels, lengths, call.arguments.get("blank", 0))
            if in_memory(given):
                self.host_row(index)[TargetColumn.NUMBERS] += given.numel()
                self.rows[index, TargetColumn.ABOVE] += (given > ROUNDING).sum().to(self.rows)
        elif index is not None and call.function in SIGNED:
            if in_memory(target) and target.numel():
                self.host_row(index)[TargetColumn.CALLS] += 1
                self._count_outside(index, target == 0, SIGNS)
        elif index is not None and call.function == COUNTED:
            if in_memory(given) and call.arguments.get("log_input", True) and made_by(given) in POSITIVE:
                self.host_row(index)[TargetColumn.CALLS] += 1
                self._count_outside(index, given.detach() >= 0, RATES)
        elif index is not None and in_memory(given) and in_memory(target):
            if call.function in REGRESSION and target.requires_grad and not given.requires_grad:
                given, target = target, given  # the order does not matter to these losses, and is often the other one
            each = call.arguments.get("reduction") == "none" or call.arguments.get("reduce") is False
            bound = _BOUNDED.get(call.function) or made_by(given)
            self.add(index, given.detach(), target.detach(), not each, bound)
            down = weighted_down(call.arguments.get("pos_weight"), target)
            if down is not None:
                self.rows[index, TargetColumn.DOWN] += down.to(self.rows)

    def add(self, index: int, given: Tensor, target: Tensor, reduced: bool, bound: str = "") -> None:
        """Record a call. No host sync; of a target with samples to compare some numbers are kept until the next call.

        Args:
            index: Of the row.
            given: Its input.
            target: Its target.
            reduced: Whether it takes the mean, or the sum, of what it compares.
            bound: The loss, or the function that computed its input; either may be one of :data:`BOUNDS`.
        """
        row = self.host_row(index)
        row[TargetColumn.CALLS] += 1
        if reduced and given.shape != target.shape:
            shape: torch.Size = torch.broadcast_shapes(given.shape, target.shape)  # type: ignore[no-untyped-call]
            sizes = given.numel(), target.numel(), math.prod(shape)
            if sizes[2] > max(sizes[:2]):
                row[TargetColumn.PAIRED] += 1
                measured = slice(TargetColumn.INPUTS, TargetColumn.PAIRS + 1)
                row[measured] = map(max, row[measured], map(float, sizes))
        if given.shape == target.shape and given.dim() > 1 and len(given) >= FEWEST_COMPARED and given[0].numel() > 1:
            inputs, targets = (_sampled(samples).to(row_dtype(given.device)) for samples in (given, target))
            counts = torch.ones(len(inputs), dtype=torch.bool, device=inputs.device)
            same = same_rows(inputs, counts) & (targets != targets[:1]).any()
            self.rows[index, TargetColumn.SAME] += same.to(self.rows)
        if bound in BOUNDS:
            bounded, near = (given, ROUNDING) if bound == KL_DIVERGENCE else (target, NEAR)
            low, high = BOUNDS[bound]
            self._count_outside(index, (bounded < low - near) | (bounded > high + near), bound)
        if target.dim() > 2 and len(target) > 1 and target[0].numel() >= VARIED and target.is_floating_point():
            self._compare(index, target)

    def add_labels(self, index: int, labels: Tensor, lengths: Tensor | Sequence[int] | None, blank: int) -> None:
        """Record the labels of a ``ctc_loss``: padded, ``(samples, labels)``, or one sample after the other. No host sync."""
        found = labels == blank
        if labels.dim() == 2 and lengths is not None:
            counts = torch.as_tensor(lengths).to(labels.device, non_blocking=True)
            found &= torch.arange(labels.shape[1], device=labels.device) < counts[:, None]
        self.host_row(index)[TargetColumn.CALLS] += 1
        self._count_outside(index, found, BLANK)

    def _count_outside(self, index: int, outside: Tensor, bound: str) -> None:
        row = self.host_row(index)
        row[TargetColumn.BOUNDED] += outside.numel()
        row[TargetColumn.BOUND] = [*BOUNDS].index(bound) + 1
        self.rows[index, TargetColumn.OUTSIDE] += outside.sum().to(self.rows)

    def _compare(self, index: int, target: Tensor) -> None:
        samples = _sampled(target)
        first, before = samples[0].clone(), self._before.get(index)
        self._before[index] = first
        if before is None or before.shape != first.shape or before.device != first.device:
            return
        varied = (first.sort().values.diff() != 0).sum() + 1 >= VARIED
        constant = varied & (samples == before).all()
        self.rows[index, TargetColumn.COMPARED : TargetColumn.OUTSIDE] += torch.stack((varied, constant)).to(self.rows)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        return {"targets": {name: target_stats(row) for name, row in self.named_lines(packed) if row[TargetColumn.CALLS]}}

    @override
    def renumbered(self) -> None:
        super().renumbered()
        self._before.clear()


def _sampled(samples: Tensor) -> Tensor:
    """Some numbers of some samples, both evenly spaced, shape ``(samples, numbers)``."""
    some = samples[:: -(-len(samples) // COMPARED)].flatten(1)
    return some[:, :: -(-some.shape[1] // SAMPLE)]


def weighted_down(weight: Any, target: Tensor) -> Tensor | None:
    """The share of the columns of a binary cross entropy whose positive targets are rare, and are weighted down.

    Args:
        weight: Of positive targets (``pos_weight``): one number, or one for each column; None without.
        target: The targets, samples first.
    """
    if not in_memory(weight) or not target.numel():
        return None
    targets, weights = target.detach().float(), weight.detach().reshape(-1)
    if len(weights) > 1 and (target.dim() < 2 or target.shape[-1] != len(weights)):
        return None
    shares = targets.mean() if len(weights) == 1 else targets.reshape(-1, len(weights)).mean(0)
    return ((weights < LITTLE) & (shares < RARE)).float().mean()


def target_stats(row: Sequence[float]) -> TargetStats:
    """Name the numbers of a row."""
    calls, paired, compared, constant, outside, same, bounded, _, numbers, above, inputs, targets, pairs, bound = map(int, row)
    bounds, down = ("", *BOUNDS)[bound], row[TargetColumn.DOWN] / calls
    if above:
        bounded, outside, bounds = numbers, above, ALIGNED
    return TargetStats(calls, paired, inputs, targets, pairs, compared, constant, bounded, outside, bounds, same, down)
