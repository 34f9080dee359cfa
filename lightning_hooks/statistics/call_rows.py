"""Rows of numbers about calls, some counted on the device and some known on the host, as one vector that merges."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.statistics.columns import RowTable


class CallRows(RowTable):
    """A row for each site of a call.

    Args:
        n_rows: How many there can be.
        device: Where the rows live.

    Attributes:
        rows: What is counted on the device.
    """

    def __init__(self, n_rows: int, device: torch.device | str = "cpu") -> None:
        super().__init__(n_rows, device)
        self._known: dict[int, list[float]] = {}  # what the host knows of the window; of few sites, and cheaper than a tensor

    def row(self, index: int) -> list[float]:
        """What the host knows of a site, to be changed in place."""
        return self._known.setdefault(index, [0.0] * self.rows.shape[1])

    @override
    def pack(self) -> Tensor:
        known = torch.zeros(self.rows.shape, dtype=self.rows.dtype)
        for index, row in self._known.items():
            known[index] = torch.tensor(row, dtype=known.dtype)
        return (self.rows + known.to(self.rows.device, non_blocking=True)).flatten()

    @override
    def unpack(self, packed: Tensor) -> None:
        self._known = {index: row for index, row in enumerate(self.lines(packed)) if any(row)}
        self.rows.zero_()

    @override
    def reset(self) -> None:
        super().reset()
        self._known.clear()
