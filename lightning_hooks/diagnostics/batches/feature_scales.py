"""How the sizes of the features differ that a linear layer multiplies as they come from the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_hooks.declare.context import Context
from lightning_hooks.hooks.attributes import stored_count
from lightning_hooks.hooks.tensors import in_memory
from lightning_hooks.statistics.columns import MAXIMUM, Columns, RowTable

MOST_FEATURES = 4096
"""Layers with more inputs are not looked at."""


@dataclass(frozen=True, slots=True)
class FeatureScales:
    """The sizes of the features that a layer is given, in the first sampled batches of a window.

    Attributes:
        ratio: Root mean square of the largest over the median of all that are not 0, in a batch; the largest.
        feature: Which is the largest, by its place in the last dimension.
        features: How many there are.
        rms: Root mean square of the largest.
    """

    ratio: float
    feature: int
    features: int
    rms: float


class ScaleColumn(Columns):
    """What each number of a row holds."""

    RATIO = MAXIMUM
    FEATURE = MAXIMUM
    RMS = MAXIMUM


class ScaleTable(RowTable):
    """A row for each linear layer. What it is given counts where no gradient goes back to it: data, and what is made of them.

    Args:
        context: Of the collector.
        sites: (name, module) of the modules that it observes.
    """

    columns: ClassVar[type[Columns]] = ScaleColumn

    def __init__(self, context: Context, sites: Sequence[tuple[str, nn.Module]]) -> None:
        sizes = {name: stored_count(module, "in_features") for name, module in sites if isinstance(module, nn.Linear)}
        self._features = {name: size for name, size in sizes.items() if 1 < size <= MOST_FEATURES}
        self._lines = {name: line for line, name in enumerate(self._features)}
        self._context = context
        super().__init__(len(self._features), context.host.setup.device)

    def line_of(self, name: str) -> int | None:
        """The line of a module; None for one that is not looked at."""
        return self._lines.get(name)

    def take(self, line: int, args: tuple[Any, ...]) -> None:
        """Record what a layer is given, in a batch that is looked at in detail."""
        given = args[0] if args else None
        if self._context.details.detailed and torch.is_grad_enabled() and in_memory(given) and not given.requires_grad:
            self.add(line, given)

    def add(self, line: int, values: Tensor) -> None:
        """Record what a layer is given, features last. No host sync."""
        if values.dim() < 2 or not values.numel() or not values.is_floating_point():
            return
        sizes = values.detach().reshape(-1, values.shape[-1]).to(self.rows.dtype).square().mean(0).sqrt()
        usual = torch.where(sizes > 0, sizes, torch.nan).nanmedian()
        largest, feature = sizes.max(0)
        found = torch.stack((largest / usual, feature, largest)).nan_to_num(0.0, 0.0, 0.0).to(self.rows.device, self.rows.dtype)
        torch.maximum(self.rows[line], found, out=self.rows[line])

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        lines = zip(self._features.items(), self.lines(packed), strict=True)
        found = {name: FeatureScales(row[0], int(row[1]), features, row[2]) for (name, features), row in lines if row[0]}
        return {"feature_scales": found}
