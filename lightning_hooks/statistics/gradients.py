"""Gradients: at module outputs as rows, and of parameters at the optimizer step in multi-tensor passes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import as_real as as_real  # noqa: PLC0414  to be imported from here too
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.feature_stats import first_nonfinite, pooled_stats
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.parameter_rows import ParameterColumn
from lightning_hooks.statistics.rows import Column

UPDATE_SAMPLE = 1 << 14
"""Up to so many elements of a parameter are all compared for its update ratio; of a larger one a quarter as many."""


@dataclass(frozen=True, slots=True)
class GradientStats:
    """The gradient of the loss at a module's output, over the sampled batches of an epoch, all ranks pooled.

    It is the gradient of the loss that the optimizer minimises: unscaled under mixed precision, divided by the
    accumulation window (as Lightning divides the loss) and by the number of ranks that DDP averages over. Moments and
    norms are over finite values.

    Attributes:
        calls: Gradients seen.
        count: Finite values.
        mean: Their mean.
        std: Their population standard deviation.
        min: The smallest.
        max: The largest.
        rms: Root mean square per element: comparable between layers of any size.
        norm: Mean over calls of the L2 norm.
        norm_max: The largest L2 norm of a call.
        zero_fraction: Share of values exactly 0, in [0, 1].
        nonfinite_fraction: Share of values NaN or infinite, in [0, 1].
        first_nonfinite_batch: The first sampled training batch of the epoch (``batch_idx``) that gave a NaN or infinite value,
            on any rank; None if all were finite.
    """

    calls: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    rms: float
    norm: float
    norm_max: float
    zero_fraction: float
    nonfinite_fraction: float
    first_nonfinite_batch: int | None = None


def gradient_stats(row: Sequence[float]) -> GradientStats:
    """Name the numbers of a row of a module-gradient table."""
    pooled = pooled_stats(row)
    calls, seen = int(row[Column.CALLS]), row[Column.COUNT] > 0
    return GradientStats(
        calls=calls,
        count=int(row[Column.COUNT]),
        norm=row[Column.NORM] / calls if seen else math.nan,
        norm_max=row[Column.NORM_MAX] if seen else math.nan,
        first_nonfinite_batch=first_nonfinite(row[Column.FIRST_NONFINITE]),
        **pooled,
    )


@dataclass(frozen=True, slots=True)
class ParameterGradientStats:
    """A parameter's ``.grad`` at the optimizer step: reduced over ranks, accumulated, unscaled, before clipping.

    Attributes:
        steps: Measured optimizer steps at which the gradient was finite.
        norm: Mean over these steps of its L2 norm.
        norm_max: The largest.
        rms: Root mean square per element over these steps.
        zero_fraction: Share of elements exactly 0, in [0, 1].
        nonfinite_steps: Measured steps at which it held a NaN or an infinite value.
        missing_steps: Measured steps at which it was None though the parameter requires gradients.
        update_ratio: Mean over measured steps of ‖update‖ / ‖weight‖, the learning rate's real effect (healthy runs are
            often near 1e-3, Karpathy 2022); None where no step could be measured, as for a weight of zeros.
        first_nonfinite_step: ``global_step`` before the first measured step at which the gradient held a NaN or an infinite
            value; None if it never did.
        weight_norm: L2 norm of the weight itself before the window's last measured update; None where none was measured. Of a
            parameter with more than ``UPDATE_SAMPLE`` elements it is estimated, as the update ratio is.
        weight_rms: Its root mean square per element.
        update_ratio_max: The largest update ratio of a measured step.
        lost_fraction: Of the elements with a gradient, the share whose value an update left as it was, since it was lost in
            rounding, in [0, 1]. Measured for weights in half precision (float16, bfloat16) under torch's own optimizers with
            a learning rate above 0, which write the update into the weight; None for all others.
        moved: Whether a measured update changed the weight; None where none was measured.
    """

    steps: int
    norm: float
    norm_max: float
    rms: float
    zero_fraction: float
    nonfinite_steps: int
    missing_steps: int
    update_ratio: float | None
    first_nonfinite_step: int | None = None
    weight_norm: float | None = None
    weight_rms: float | None = None
    update_ratio_max: float | None = None
    lost_fraction: float | None = None
    moved: bool | None = None


def parameter_gradient_stats(row: Sequence[float]) -> ParameterGradientStats:
    """Name the numbers of a row of a parameter table."""
    steps = int(row[ParameterColumn.STEPS])
    elements = row[ParameterColumn.ELEMENTS]
    measured = steps + int(row[ParameterColumn.NONFINITE_STEPS])
    ratios = row[ParameterColumn.RATIO_STEPS]
    updates, with_gradient = row[ParameterColumn.UPDATES], row[ParameterColumn.WITH_GRADIENT]
    finite_elements = elements * steps / measured if measured else 0.0
    return ParameterGradientStats(
        steps=steps,
        norm=row[ParameterColumn.NORM] / steps if steps else math.nan,
        norm_max=row[ParameterColumn.NORM_MAX] if steps else math.nan,
        rms=math.sqrt(row[ParameterColumn.SQUARE] / finite_elements) if finite_elements else math.nan,
        zero_fraction=row[ParameterColumn.ZEROS] / elements if elements else math.nan,
        nonfinite_steps=int(row[ParameterColumn.NONFINITE_STEPS]),
        missing_steps=int(row[ParameterColumn.MISSING_STEPS]),
        update_ratio=row[ParameterColumn.RATIO] / ratios if ratios else None,
        first_nonfinite_step=first_nonfinite(row[ParameterColumn.FIRST_NONFINITE]),
        weight_norm=row[ParameterColumn.WEIGHT_NORM] if updates else None,
        weight_rms=row[ParameterColumn.WEIGHT_RMS] if updates else None,
        update_ratio_max=row[ParameterColumn.RATIO_MAX] if ratios else None,
        lost_fraction=row[ParameterColumn.LOST] / with_gradient if with_gradient else None,
        moved=row[ParameterColumn.MOVED] > 0 if updates else None,
    )


class WeightSample:
    """Copies of parts of parameters before an update, for its size after it.

    Of a parameter with up to ``UPDATE_SAMPLE`` elements all are taken, so its ratio is exact; of a larger one a quarter as
    many, evenly spread over all its columns. The relative standard error of a norm estimated from n elements is about
    sqrt((kurtosis - 1) / 4n): 1.1 % for normally distributed values.

    Args:
        parameters: Plain dense tensors on one device.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        parameters = [as_real(parameter) for parameter in parameters]
        self._strides = _strides(tuple([parameter.shape for parameter in parameters]))
        self._kernels = kernels_for(parameters[0].device.type)
        self._taken = self._kernels.sample(parameters, self._strides)

    def updates(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before of each parameter.

        Args:
            parameters: The same, after the update.

        Returns:
            Shape ``(3, n)``, in the row's dtype; NaN for those that became others.
        """
        return self._kernels.updates(self._taken, [as_real(parameter) for parameter in parameters], self._strides)

    def lost(self, parameters: Sequence[Tensor], places: Sequence[int]) -> Tensor:
        """How many elements kept their value although they had a gradient.

        Args:
            parameters: All of them, after the update, with their gradients.
            places: Which of them to look at: in half precision, with a dense gradient.

        Returns:
            Shape ``(2, len(places))``, in the row's dtype: such elements, and all with a gradient, of those that were taken.
        """
        now = [every(as_real(parameters[place]), self._strides[place]) for place in places]
        gradients = [every(as_real(_gradient(parameters[place])), self._strides[place]) for place in places]
        counts = [part.numel() for part in now]
        then = [self._taken[place].reshape(-1) for place in places]
        had = torch.cat(gradients) != 0
        flags = torch.stack((had & (torch.cat(then) == torch.cat(now)), had)).float()
        # A norm of order 1 of flags counts them, of all tensors in one call.
        found = torch.stack(torch._foreach_norm([part for row in flags for part in row.split(counts)], 1))
        return found.to(row_dtype(found.device)).view(2, -1)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def every(parameter: Tensor, stride: int) -> Tensor:
    """A copy of every stride-th element, in float32 at least."""
    flat = plain_values(parameter).reshape(-1)[::stride]
    return flat.to(torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True)


@functools.lru_cache(maxsize=256)
def _strides(shapes: tuple[torch.Size, ...]) -> tuple[int, ...]:
    """The distance between the elements that are taken of parameters of these shapes: the same at every step."""
    return tuple(spacing(shape.numel(), shape.numel() // shape[0] if shape and shape[0] else 1)[1] for shape in shapes)


@functools.lru_cache(maxsize=4096)
def spacing(numel: int, columns: int, sample: int = UPDATE_SAMPLE) -> tuple[int, int]:
    """How many elements of a parameter to take, and at what distance: all of up to ``sample``, of more a quarter as many."""
    if numel <= sample:
        return numel, 1
    stride = 4 * numel // sample
    while math.gcd(stride, columns) != 1:  # a common factor would visit some columns only
        stride += 1
    return -(-numel // stride), stride
