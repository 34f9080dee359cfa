"""Gradients: at module outputs as rows, and of parameters at the optimizer step in multi-tensor passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from lightning_hooks.statistics.features import pooled_stats
from lightning_hooks.statistics.host import norms_on_host, zeros_on_host
from lightning_hooks.statistics.rows import Column, row_dtype

UPDATE_SAMPLE = 1 << 14
"""Elements of a parameter compared for its update ratio: all of a smaller one, evenly spread over a larger one."""


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


def gradient_stats(row: Sequence[float]) -> GradientStats:
    """Name the numbers of a row of a module-gradient table."""
    pooled = pooled_stats(row)
    calls, seen = int(row[Column.CALLS]), row[Column.COUNT] > 0
    return GradientStats(
        calls=calls,
        count=int(row[Column.COUNT]),
        norm=row[Column.NORM] / calls if seen else math.nan,
        norm_max=row[Column.NORM_MAX] if seen else math.nan,
        **pooled,
    )


class ParameterColumn(IntEnum):
    """What each number of a parameter's row holds; all but NORM_MAX add."""

    STEPS = 0  # measured optimizer steps with a finite gradient
    NORM = 1  # sum of its L2 norm over them
    SQUARE = 2  # sum of its squared norm
    NORM_MAX = 3
    ZEROS = 4  # zero elements, over measured steps
    ELEMENTS = 5  # elements, over measured steps
    NONFINITE_STEPS = 6
    MISSING_STEPS = 7  # the gradient was None
    RATIO = 8  # sum of |update| / |weight|
    RATIO_STEPS = 9


N_PARAMETER_COLUMNS = len(ParameterColumn)


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
    """

    steps: int
    norm: float
    norm_max: float
    rms: float
    zero_fraction: float
    nonfinite_steps: int
    missing_steps: int
    update_ratio: float | None


def parameter_gradient_stats(row: Sequence[float]) -> ParameterGradientStats:
    """Name the numbers of a row of a parameter table."""
    steps = int(row[ParameterColumn.STEPS])
    elements = row[ParameterColumn.ELEMENTS]
    measured = steps + int(row[ParameterColumn.NONFINITE_STEPS])
    ratios = row[ParameterColumn.RATIO_STEPS]
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
    )


def gradient_norms(gradients: Sequence[Tensor]) -> Tensor:
    """L2 norm of each gradient, without a host sync.

    Args:
        gradients: Plain dense tensors on one device; at least one.

    Returns:
        Shape ``(n,)``, in the row's dtype; NaN or infinite where a gradient holds such a value.
    """
    device = gradients[0].device
    if device.type == "cpu":
        return torch.tensor(norms_on_host(gradients), dtype=torch.float64)
    # The multi-tensor norm is what clip_grad_norm_ itself calls; torch has no public name for it per tensor.
    return torch.stack(torch._foreach_norm(list(gradients))).to(row_dtype(device))


def zero_counts(gradients: Sequence[Tensor]) -> Tensor:
    """How many elements of each gradient are exactly zero: shape ``(n,)``, in the row's dtype."""
    device = gradients[0].device
    if device.type == "cpu":
        return torch.tensor([zeros_on_host(gradient) for gradient in gradients], dtype=torch.float64)
    return torch.stack([(gradient == 0).sum() for gradient in gradients]).to(row_dtype(device))


def parameter_rows(norms: Tensor, zeros: Tensor, elements: Tensor) -> Tensor:
    """The rows of one optimizer step.

    Args:
        norms: L2 norms, shape ``(n,)``.
        zeros: Zero elements, shape ``(n,)``.
        elements: Sizes, shape ``(n,)``.

    Returns:
        Shape ``(n, n_parameter_columns)``.
    """
    finite = torch.isfinite(norms)
    kept = torch.where(finite, norms, 0)
    rows = norms.new_zeros((norms.shape[0], N_PARAMETER_COLUMNS))
    rows[:, ParameterColumn.STEPS] = finite
    rows[:, ParameterColumn.NORM] = kept
    rows[:, ParameterColumn.SQUARE] = kept * kept
    rows[:, ParameterColumn.NORM_MAX] = kept
    rows[:, ParameterColumn.ZEROS] = zeros
    rows[:, ParameterColumn.ELEMENTS] = elements
    rows[:, ParameterColumn.NONFINITE_STEPS] = ~finite
    return rows


def merge_parameter_rows(rows: Tensor) -> Tensor:
    """Merge parameter rows along the first dimension: ``(k, n, columns)`` to ``(n, columns)``."""
    merged = rows.sum(0)
    merged[..., ParameterColumn.NORM_MAX] = rows[..., ParameterColumn.NORM_MAX].amax(0)
    return merged


def weight_sample(parameter: Tensor) -> Tensor:
    """A copy of up to ``UPDATE_SAMPLE`` elements of a parameter, spread evenly and over all its columns.

    The relative standard error of a norm estimated from n elements is about sqrt((kurtosis - 1) / 4n): 0.6 % for normally
    distributed values. Parameters up to that size are taken whole, so their ratios are exact.
    """
    flat = parameter.detach().reshape(-1)
    if flat.numel() > UPDATE_SAMPLE:
        stride = flat.numel() // UPDATE_SAMPLE
        while math.gcd(stride, parameter[0].numel()) != 1:  # a common factor would visit some columns only
            stride += 1
        flat = flat[::stride]
    return flat.to(torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True)


def update_ratios(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    """‖after - before‖ / ‖before‖ of each pair of weight samples: shape ``(n,)``; NaN or infinite for zero weights."""
    updates = torch._foreach_norm(torch._foreach_sub(list(after), list(before)))
    weights = torch._foreach_norm(list(before))
    dtype = row_dtype(before[0].device)
    return torch.stack(updates).to(dtype) / torch.stack(weights).to(dtype)
