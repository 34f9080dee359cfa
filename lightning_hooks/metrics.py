"""Statistics as torchmetrics Metrics, for ``self.log``, ``MetricCollection`` and ``FeatureStatsMonitor(metrics=…)``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lightning_hooks.hooks.checks import check_count
from lightning_hooks.hooks.tensors import has_values, plain_values
from lightning_hooks.statistics.kernels import Units, kernels_for
from lightning_hooks.statistics.rows import Column, ParameterColumn, empty_table, merge, parameter_rows
from lightning_hooks.statistics.units import unit_dimension
from lightning_hooks.statistics.weight_sample import WeightSample

__all__ = ["DeadUnits", "GradientNorm", "TensorStatistics", "UpdateRatio"]


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
        found = {
            "mean": mean,
            "std": variance.sqrt(),
            "min": row[Column.MIN],
            "max": row[Column.MAX],
            "rms": (variance + mean * mean).sqrt(),
            "kurtosis": torch.where(m4 > 0, count * (m4 / m2 / m2), math.nan),
        }
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


class GradientNorm(Statistic):
    """The L2 norm of all gradients together, mean over steps; a step with a value that is not finite does not count.

    Call ``update`` where gradients are as you want them: ``on_before_optimizer_step`` comes before clipping. Keyword arguments are
    those of :class:`torchmetrics.Metric`.
    """

    gradients: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("gradients", ParameterColumn.empty(1), dist_reduce_fx=ParameterColumn.merged)

    @override
    def update(self, parameters: nn.Module | Iterable[Tensor]) -> None:
        """Add a step, of a module or of parameters; those without a gradient are skipped."""
        gradients = [each.grad for each in _tensors(parameters) if each.grad is not None]
        if gradients:
            norm = kernels_for(gradients[0].device.type).norms(gradients).norms.norm()[None]
            rows = parameter_rows(norm, torch.zeros_like(norm), torch.zeros_like(norm))
            self.gradients = ParameterColumn.merged(torch.stack((self.gradients, rows)))

    @override
    def compute(self) -> Tensor:
        """Return the norm; NaN where no step counts."""
        return self.gradients[0, ParameterColumn.NORM] / self.gradients[0, ParameterColumn.STEPS]


class UpdateRatio(Statistic):
    """The norm of an update over the norm of the weights before it, ‖update‖ / ‖weights‖, mean over steps; often near 1e-3.

    Call ``update`` before the first step and after each, as in ``on_train_start`` and ``on_train_batch_end``: each call is compared
    with the one before. Of parameters with more than 16 384 elements a sample is. Weights that are not finite do not count. Keyword
    arguments are those of :class:`torchmetrics.Metric`.
    """

    updates: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("updates", ParameterColumn.empty(1), dist_reduce_fx=ParameterColumn.merged)
        self._before: WeightSample | None = None

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_before": None}  # a copy compares from its own first call on

    @override
    def update(self, parameters: nn.Module | Iterable[Tensor]) -> None:
        """Add a step, of a module's parameters that require a gradient, or of parameters: the same in each call."""
        weights = [plain_values(each) for each in _tensors(parameters)]
        before, self._before = self._before, WeightSample(weights) if weights else None
        if before is not None and weights:
            sizes = before.updates(weights).norm(dim=1, keepdim=True)
            rows, place = self.updates.clone(), torch.zeros(1, dtype=torch.int64, device=sizes.device)
            kernels_for(sizes.device.type).enter_updates(rows, place, sizes)
            self.updates = rows

    @override
    def compute(self) -> Tensor:
        """Return the ratio; NaN where no step counts."""
        return self.updates[0, ParameterColumn.RATIO] / self.updates[0, ParameterColumn.RATIO_STEPS]


def _tensors(parameters: nn.Module | Iterable[Tensor]) -> list[Tensor]:
    if isinstance(parameters, nn.Module):
        parameters = (each for each in parameters.parameters() if each.requires_grad)
    return [each for each in parameters if has_values(each)]
