"""Gradients: at module outputs as rows, and of parameters at the optimizer step in multi-tensor passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_hooks.diagnostics.features.stats import first_nonfinite, pooled_stats
from lightning_hooks.statistics.rows import Column, ParameterColumn


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
    calls, seen = int(row[Column.CALLS]), row[Column.COUNT] > 0
    return GradientStats(
        calls=calls,
        count=int(row[Column.COUNT]),
        norm=row[Column.NORM] / calls if seen else math.nan,
        norm_max=row[Column.NORM_MAX] if seen else math.nan,
        first_nonfinite_batch=first_nonfinite(row[Column.FIRST_NONFINITE]),
        **pooled_stats(row),
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
