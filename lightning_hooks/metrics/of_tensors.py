"""Metrics of tensors, such as the outputs of a module."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from lightning_hooks.hooks.checks import check_count
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.kernels import Units, kernels_for
from lightning_hooks.statistics.rows import Column, empty_table, merge
from lightning_hooks.statistics.units import unit_dimension


class Statistic(Metric):
    """Base class: ``forward`` updates once, takes the batch's value from that, and merges it."""

    full_state_update = False

    @override
    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Draw the value, or several that ``forward`` returned, into axes of matplotlib or new ones."""
        return self._plot(val, ax)


class TensorStatistics(Statistic):
    """Mean, std, min, max, rms and kurtosis of the finite values, and the shares of zeros and of values that are not finite.

    They are those of the concatenated data of all batches and ranks, not means of batch means; NaN where there are no values. The
    kurtosis of a normal distribution is 3. Keyword arguments are those of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from lightning_hooks.metrics import TensorStatistics
        >>> statistics = TensorStatistics()
        >>> statistics.update(torch.tensor([1.0, 2.0]))
        >>> statistics.update(torch.tensor([6.0]))
        >>> statistics.compute()["mean"].item()
        3.0
    """

    row: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("row", empty_table(1)[0], dist_reduce_fx=merge)

    @override
    def update(self, values: Tensor) -> None:
        """Add the values of a tensor of any shape."""
        values = plain_values(values)
        rows = empty_table(1, values.device)
        found = values if values.is_floating_point() else values.to(rows.dtype)
        kernels_for(values.device.type).record(rows, 0, found, moments=True)
        self.row = merge(torch.stack((self.row, rows[0])))

    @override
    def compute(self) -> dict[str, Tensor]:
        """Return the statistics by name, without waiting for the device."""
        row, count, mean, m2 = self.row, self.row[Column.COUNT], self.row[Column.MEAN], self.row[Column.M2]
        m4, variance, seen = row[Column.MOMENT_M4], m2 / count, count + row[Column.NONFINITE]
        found = {"mean": mean, "std": variance.sqrt(), "min": row[Column.MIN], "max": row[Column.MAX]}
        found |= {"rms": (variance + mean * mean).sqrt(), "kurtosis": torch.where(m4 > 0, count * (m4 / m2 / m2), math.nan)}
        found = {name: torch.where(count > 0, value, math.nan) for name, value in found.items()}
        return {**found, "zero_fraction": row[Column.ZEROS] / seen, "nonfinite_fraction": row[Column.NONFINITE] / seen}


class DeadUnits(Statistic):
    """The share of a rectifier's units that gave 0 for every input of all batches and ranks.

    Args:
        num_units: How many units there are.
        dim: The dimension that they lie in; None for the last one of up to 3 dimensions, and dimension 1 of more.
        **kwargs: Those of :class:`torchmetrics.Metric`.

    Raises:
        TypeError, ValueError: If ``num_units`` is no integer of at least 1, or values have another number of units.
    """

    fired: Tensor
    updates: Tensor

    def __init__(self, num_units: int, dim: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_units, self.dim = check_count("num_units", num_units, 1), dim
        self.add_state("fired", torch.zeros(num_units, dtype=torch.bool), dist_reduce_fx="max")
        self.add_state("updates", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    @override
    def update(self, values: Tensor) -> None:
        """Add the outputs of the rectifier."""
        values, fired = plain_values(values), self.fired.clone()
        dim = unit_dimension(values.dim(), None) if self.dim is None else self.dim % max(values.dim(), 1)
        if not values.dim() or values.shape[dim] != self.num_units:
            raise ValueError(f"DeadUnits expects {self.num_units} units in dimension {dim}; got shape {tuple(values.shape)}.")
        if values.numel():
            kernels_for(values.device.type).mark(values, Units(self.num_units, dim, fired))
            self.fired, self.updates = fired, self.updates + 1

    @override
    def compute(self) -> Tensor:
        """Return the share, in [0, 1]; NaN before the first values."""
        return torch.where(self.updates > 0, 1 - self.fired.float().mean(), math.nan)
