"""What a loss between numbers compares: whether shapes are expanded to pairs, and whether targets differ between samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from lightning_hooks.statistics.call_rows import CallRows

COMPARED = 8
"""Samples of a target that are compared with one another, evenly spaced."""
SAMPLE = 1024
"""Numbers of each of them, evenly spaced."""
VARIED = 32
"""Different numbers in a sample from which on it is compared: labels, masks and codes of few values may well be the same."""


@dataclass(frozen=True, slots=True)
class TargetStats:
    """What the calls of one loss between numbers, such as ``mse_loss``, were given in the sampled batches of a window.

    Attributes:
        calls: How often it was called.
        paired: Calls that compare more pairs than the input or the target has numbers, which have not as many dimensions.
        inputs: Numbers of the input of such a call; the most.
        targets: Numbers of its target; the most.
        pairs: How many pairs it compares; the most.
        compared: Calls whose target was compared with that of the call before: with two samples and more, each of two dimensions
            and more and of at least 32 different numbers.
        constant: Those of them whose samples all had the same target, and the same as before, to the bit.
    """

    calls: int
    paired: int
    inputs: int
    targets: int
    pairs: int
    compared: int
    constant: int


class TargetColumn(IntEnum):
    """What each number of a row holds, as :class:`TargetStats` has them; the first that add, then the largest."""

    CALLS = 0
    PAIRED = 1
    COMPARED = 2
    CONSTANT = 3
    INPUTS = 4
    TARGETS = 5
    PAIRS = 6


WIDTH = len(TargetColumn)
_MAXIMA = (TargetColumn.INPUTS, TargetColumn.TARGETS, TargetColumn.PAIRS)


class TargetTable(CallRows):
    """A row for each loss between numbers.

    Args:
        capacity: How many there can be.
        device: Where the rows live.
    """

    def __init__(self, capacity: int, device: torch.device | str = "cpu") -> None:
        super().__init__(capacity, WIDTH, _MAXIMA, device)
        self._before: dict[int, Tensor] = {}  # of the last target of each loss, some numbers of its first sample

    def add(self, index: int, given: Tensor, target: Tensor, reduced: bool) -> None:
        """Take up a call. No host sync; of a target with samples to compare some numbers are kept until the next call.

        Args:
            index: Of the loss.
            given: Its input.
            target: Its target.
            reduced: Whether it takes the mean, or the sum, of what it compares.
        """
        row = self.row(index)
        row[TargetColumn.CALLS] += 1
        if reduced and given.dim() != target.dim():
            shape: torch.Size = torch.broadcast_shapes(given.shape, target.shape)  # type: ignore[no-untyped-call]
            sizes = given.numel(), target.numel(), math.prod(shape)
            if sizes[2] > max(sizes[:2]):
                row[TargetColumn.PAIRED] += 1
                row[TargetColumn.INPUTS :] = map(max, row[TargetColumn.INPUTS :], map(float, sizes))
        if target.dim() > 2 and len(target) > 1 and target[0].numel() >= VARIED and target.is_floating_point():
            self._compare(index, target)

    def _compare(self, index: int, target: Tensor) -> None:
        """Compare the samples of a target with one another, and the first one with that of the call before."""
        samples = target[:: -(-len(target) // COMPARED)].flatten(1)
        samples = samples[:, :: -(-samples.shape[1] // SAMPLE)]
        first, before = samples[0].clone(), self._before.get(index)
        self._before[index] = first
        if before is None or before.shape != first.shape or before.device != first.device:
            return
        varied = (first.sort().values.diff() != 0).sum() + 1 >= VARIED
        constant = varied & (samples == before).all()
        found = torch.stack((varied, constant)).to(self.rows.device, self.rows.dtype)
        self.rows[index, TargetColumn.COMPARED : TargetColumn.INPUTS] += found


def target_stats(row: Sequence[float]) -> TargetStats:
    """Name the numbers of a row."""
    calls, paired, compared, constant, inputs, targets, pairs = map(int, row)
    return TargetStats(calls, paired, inputs, targets, pairs, compared, constant)
