"""In which precision matrix products run, where half precision was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hooks.statistics.reduction import Stretch, Stretches, added


@dataclass(frozen=True, slots=True)
class PrecisionStats:
    """The outputs of linear and convolution layers under a precision that computes these in half precision.

    Attributes:
        asked: The precision asked for, such as ``bf16-mixed``.
        full_share: Share of the numbers in the weights of the layers called whose outputs were in float32 or float64, in [0, 1].
        full: These layers, in the order of the model.
        layers: How many layers were called.
    """

    asked: str
    full_share: float
    full: tuple[str, ...]
    layers: int


class PrecisionTable:
    """Counts the calls of layers and those in full precision, on the host: a tensor's type is known without its values.

    Args:
        sizes: How many numbers each layer's weight has.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self._calls = [[0.0, 0.0] for _ in sizes]

    def add(self, line: int, output: Tensor) -> None:
        """Take up the output of a layer."""
        self._calls[line][0] += 1
        self._calls[line][1] += output.dtype in (torch.float32, torch.float64)

    def pack(self) -> Tensor:
        """Return everything as one vector."""
        return torch.tensor(self._calls, dtype=torch.float32).flatten()

    def unpack(self, packed: Tensor) -> None:
        """Take up a vector that :meth:`pack` or a merge gave."""
        self._calls = packed.view(-1, 2).tolist()

    @property
    def stretches(self) -> Stretches:
        """How the packed vectors of ranks and of windows merge."""
        return (Stretch(2 * len(self.sizes), added),)

    def reset(self) -> None:
        """Start a new window."""
        self._calls = [[0.0, 0.0] for _ in self.sizes]

    def read(self, packed: Tensor, names: Sequence[str], asked: str) -> PrecisionStats | None:
        """Name the numbers of a packed vector on the host; None where no layer was called.

        Args:
            packed: From all ranks.
            names: Of the layers.
            asked: The precision asked for.
        """
        rows = packed.view(-1, 2).tolist()
        called = [(name, size, full / calls) for name, size, (calls, full) in zip(names, self.sizes, rows, strict=True) if calls]
        total = sum(size for _, size, _ in called)
        if not total:
            return None
        share = sum(size * full for _, size, full in called) / total
        return PrecisionStats(asked, share, tuple(name for name, _, full in called if full), len(called))
