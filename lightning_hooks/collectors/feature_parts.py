"""What is measured of a model next to the statistics of its sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_hooks.statistics.reduction import Stretches


class FeaturePart(Protocol):
    """Numbers that are packed together with the features, and become fields of their report."""

    @property
    def stretches(self) -> Stretches:
        """How the packed numbers of ranks and of windows merge; their lengths stay the same for a run."""

    def pack(self) -> Tensor:
        """Return the window's numbers, one-dimensional, of the same length on every rank."""

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of a :class:`~lightning_hooks.alerts.FeatureReport`, of packed numbers on the host."""

    def reset(self) -> None:
        """Start a new window."""


class FeatureParts:
    """Several parts, one after the other.

    Args:
        parts: Each with its stretches.
    """

    def __init__(self, parts: Sequence[FeaturePart]) -> None:
        self.parts = parts
        self._sizes = [sum(stretch.length for stretch in part.stretches) for part in parts]
        self.length = sum(self._sizes)

    @property
    def stretches(self) -> Stretches:
        """Those of all parts."""
        return tuple(stretch for part in self.parts for stretch in part.stretches)

    def pack(self, like: Tensor) -> Tensor:
        """Return the numbers of all parts, of the dtype and device of ``like``."""
        return torch.cat([part.pack().to(like.device, like.dtype, non_blocking=True) for part in self.parts] or [like.new_empty(0)])

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        for part, numbers in zip(self.parts, torch.split(packed, self._sizes), strict=True):
            part.unpack(numbers)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return the fields of all parts."""
        fields: dict[str, Any] = {}
        for part, numbers in zip(self.parts, torch.split(packed, self._sizes), strict=True):
            fields |= part.read(numbers)
        return fields

    def reset(self) -> None:
        """Start a new window."""
        for part in self.parts:
            part.reset()
