"""What collectors share whose numbers of a window are one table."""

from __future__ import annotations

from abc import ABC
from typing import Generic, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.collectors.collector import Collector, R
from lightning_hooks.statistics.reduction import Stretch, Stretches, added, largest


class WindowTable(Protocol):
    """A window's numbers."""

    @property
    def stretches(self) -> Stretches:
        """How the packed numbers of ranks and of windows merge."""

    def pack(self) -> Tensor:
        """Return the window's numbers."""

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""

    def reset(self) -> None:
        """Start a new window."""


class TableCollector(Collector[R], ABC, Generic[R]):
    """A collector that packs its ``table`` behind how many batches were sampled, and how many there were."""

    table: WindowTable

    @override
    def pack(self) -> Tensor:
        table = self.table.pack()
        batches = torch.tensor([self.context.sampled_batches, self.context.batches], dtype=table.dtype)
        return torch.cat((batches.to(table.device, non_blocking=True), table))

    @override
    def unpack(self, packed: Tensor) -> None:
        self.table.unpack(packed[2:])

    @property
    @override
    def stretches(self) -> Stretches:
        return Stretch(2, largest, added), *self.table.stretches

    @override
    def reset(self) -> None:
        self.table.reset()
