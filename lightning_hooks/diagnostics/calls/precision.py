"""In which precision matrix products run, where half precision was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.statistics.reduction import added
from lightning_hooks.statistics.tables import HostNumbers


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


class PrecisionTable(HostNumbers):
    """Counts the calls of layers and those in full precision, on the host: a tensor's type is known without its values.

    Args:
        sizes: How many numbers each layer's weight has.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        super().__init__(lambda: [count for line in self._calls for count in line], added, load=self._load_calls)
        self.reset()

    def add(self, line: int, output: Tensor) -> None:
        """Record the output of a layer."""
        self._calls[line][0] += 1
        self._calls[line][1] += output.dtype in (torch.float32, torch.float64)

    def _load_calls(self, counts: list[float]) -> None:
        self._calls = [counts[place : place + 2] for place in range(0, len(counts), 2)]

    @override
    def reset(self) -> None:
        self._calls = [[0.0, 0.0] for _ in self.sizes]

    def stats(self, packed: Tensor, names: Sequence[str], asked: str) -> PrecisionStats | None:
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
