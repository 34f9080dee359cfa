"""The loss over a window: its mean, and the straight line through it, from sums that merge over batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from lightning_hooks.statistics.rows import row_dtype

PAGE = 64
"""Losses kept as they are before they are summed: one operation a batch, and a few more every 64 batches."""


class LossColumn(IntEnum):
    """What each number of a loss row holds; all add. Batches are counted in the window, from 0."""

    COUNT = 0  # finite losses
    LOSS = 1
    BATCH = 2
    BATCH_SQUARED = 3
    BATCH_LOSS = 4  # batch times loss
    NONFINITE = 5


N_LOSS_COLUMNS = len(LossColumn)


@dataclass(frozen=True, slots=True)
class LossStats:
    """The loss of a window's training batches, as ``training_step`` gave it; of all ranks, and of every backward pass.

    Attributes:
        count: Finite losses.
        mean: Their mean; NaN if there were none.
        start: The value at the window's first batch of the straight line that fits them best (least squares).
        end: Its value at the window's last batch.
        nonfinite: Losses that were NaN or infinite.
    """

    count: int
    mean: float
    start: float
    end: float
    nonfinite: int = 0


def loss_row(losses: Tensor, batches: Tensor) -> Tensor:
    """The row of some losses, shape ``(n_loss_columns,)``.

    Args:
        losses: Shape ``(k,)``.
        batches: The batch of each, shape ``(k,)``, on the same device and of the same dtype.
    """
    finite = torch.isfinite(losses)
    loss, batch = torch.where(finite, losses, 0), torch.where(finite, batches, 0)
    sums = (finite.to(losses.dtype), loss, batch, batch * batch, batch * loss, (~finite).to(losses.dtype))
    return torch.stack(sums).sum(1)


def loss_stats(row: Sequence[float], batches: int) -> LossStats | None:
    """Name the numbers of a row of a window with so many batches; None where no loss was seen."""
    count, loss, batch, squared, product, nonfinite = row
    if not count:
        return LossStats(0, math.nan, math.nan, math.nan, int(nonfinite)) if nonfinite else None
    mean, spread = loss / count, count * squared - batch * batch
    slope = (count * product - batch * loss) / spread if spread > 0 else 0.0
    start = mean - slope * batch / count
    return LossStats(int(count), mean, start, start + slope * max(batches - 1, 0), int(nonfinite))


class LossTable:
    """Takes up losses on the device, without waiting for it.

    Args:
        device: Where the sums live.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._row = torch.zeros(N_LOSS_COLUMNS, device=device, dtype=row_dtype(torch.device(device)))
        self._losses: list[Tensor] = []
        self._batches: list[int] = []

    def add(self, loss: Tensor, batch: int, factor: float = 1.0, scale: Tensor | None = None) -> None:
        """Take up the loss of a batch.

        Args:
            loss: As it goes into backward.
            batch: The batch in the window, from 0.
            factor: What it is to be multiplied by, as it was divided for gradient accumulation.
            scale: The loss scale in it.
        """
        value = loss.detach() if loss.dim() == 0 else loss.detach().mean()
        self._losses.append(value * factor if scale is None else value / scale * factor)  # a copy: the loss may be changed in place
        self._batches.append(batch)
        if len(self._losses) == PAGE:
            self._close_page()

    def _close_page(self) -> None:
        if self._losses:
            losses = torch.stack(self._losses).to(self._row)
            batches = torch.tensor(self._batches, dtype=losses.dtype).to(losses.device, non_blocking=True)
            self._row = self._row + loss_row(losses, batches)
            self._losses.clear()
            self._batches.clear()

    def pack(self) -> Tensor:
        """The sums so far, shape ``(n_loss_columns,)``."""
        self._close_page()
        return self._row

    def unpack(self, row: Tensor) -> None:
        """Take up sums that :meth:`pack` gave."""
        self._row = row.to(self._row)

    def reset(self) -> None:
        """Start a new window."""
        self._losses.clear()
        self._batches.clear()
        self._row = torch.zeros_like(self._row)
