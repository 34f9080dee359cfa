"""Rows of numbers about calls, some counted on the device and some known on the host, as one vector that merges."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.statistics.reduction import Stretch, Stretches, by_columns, largest
from lightning_hooks.statistics.rows import row_dtype


class CallRows:
    """A row for each site of a call.

    Args:
        capacity: How many there can be.
        width: Numbers in a row.
        maxima: The columns of which the largest counts; the others add.
        device: Where the rows live.

    Attributes:
        rows: What is counted on the device, shape ``(capacity, width)``.
    """

    def __init__(self, capacity: int, width: int, maxima: Sequence[int], device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        self.rows = torch.zeros((capacity, width), dtype=row_dtype(device), device=device)
        self._merged = by_columns(((largest, maxima),), width)
        self._known: dict[int, list[float]] = {}  # what the host knows of the window; of few sites, and cheaper than a tensor

    def row(self, index: int) -> list[float]:
        """What the host knows of a site, to be changed in place."""
        return self._known.setdefault(index, [0.0] * self.rows.shape[1])

    def pack(self) -> Tensor:
        """Return everything as one vector."""
        known = torch.zeros(self.rows.shape, dtype=self.rows.dtype)
        for index, row in self._known.items():
            known[index] = torch.tensor(row, dtype=known.dtype)
        return (self.rows + known.to(self.rows.device, non_blocking=True)).flatten()

    def unpack(self, packed: Tensor) -> None:
        """Take up a vector that :meth:`pack` or a merge gave."""
        rows = packed.view_as(self.rows).tolist()
        self._known = {index: row for index, row in enumerate(rows) if any(row)}
        self.rows.zero_()

    @property
    def stretches(self) -> Stretches:
        """How the packed vectors of ranks and of windows merge."""
        return (Stretch(self.rows.numel(), self._merged),)

    def reset(self) -> None:
        """Start a new window."""
        self.rows.zero_()
        self._known.clear()
