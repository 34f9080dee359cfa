"""Gradients: at module outputs as rows, and of parameters at the optimizer step in multi-tensor passes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.feature_stats import first_nonfinite, pooled_stats
from lightning_hooks.statistics.host import norms_on_host, zeros_on_host
from lightning_hooks.statistics.native import Places, native
from lightning_hooks.statistics.rows import N_PARAMETER_COLUMNS, Column, ParameterColumn, fixed, row_dtype

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
        first_nonfinite_step=first_nonfinite(row[ParameterColumn.FIRST_NONFINITE]),
    )


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as the pairs of its real and imaginary parts, of the same memory; any other as it is."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def gradient_norms(gradients: Sequence[Tensor], places: Places | None = None) -> Tensor:
    """L2 norm of each gradient, without a host sync.

    Args:
        gradients: Plain dense tensors on one device; at least one.
        places: Where they lie, if that is known.

    Returns:
        Shape ``(n,)``, in the row's dtype; NaN or infinite where a gradient holds such a value.
    """
    device = gradients[0].device
    if device.type == "cpu":
        fast, places = native(), places or located(gradients)
        if fast is None or places is None:
            return torch.tensor(norms_on_host([as_real(gradient) for gradient in gradients]), dtype=torch.float64)
        return fast.norms(places)[0]
    # The multi-tensor norm is what clip_grad_norm_ itself calls; torch has no public name for it per tensor.
    return torch.stack(torch._foreach_norm([as_real(gradient) for gradient in gradients])).to(row_dtype(device))


def norms_and_zeros(gradients: Sequence[Tensor], places: Places | None = None) -> tuple[Tensor, Tensor]:
    """L2 norm of each gradient, and how many of its elements are exactly zero, in one read where that can be.

    Args:
        gradients: Plain dense tensors on one device; at least one.
        places: Where they lie, if that is known.

    Returns:
        Two tensors of shape ``(n,)``, in the row's dtype.
    """
    device = gradients[0].device
    if device.type == "cpu":
        fast, places = native(), places or located(gradients)
        if fast is not None and places is not None:
            norms, counts = fast.norms(places, zeros=True)
            assert counts is not None
            return norms, counts
        zeros = torch.tensor([zeros_on_host(gradient) for gradient in gradients], dtype=torch.float64)
    else:
        zeros = torch.stack([(gradient == 0).sum() for gradient in gradients]).to(row_dtype(device))
    return gradient_norms(gradients), zeros


def located(tensors: Sequence[Tensor], known: Places | None = None) -> Places | None:
    """Where tensors lie, for the compiled path; None where it cannot read them all.

    Args:
        tensors: Of any kind.
        known: Where they were when last asked for: the answer again if they are still there.
    """
    fast = native()
    if fast is None:
        return None
    found = None if known is None else fast.moved(tensors, known)
    return fast.places(tensors) if found is None else found


def empty_parameter_table(n_parameters: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a table of ``n_parameters`` identity rows, of shape ``(n_parameters, n_parameter_columns)``."""
    device = torch.device(device)
    table = torch.zeros((n_parameters, N_PARAMETER_COLUMNS), device=device, dtype=row_dtype(device))
    table[:, ParameterColumn.FIRST_NONFINITE] = torch.inf
    return table


def parameter_rows(norms: Tensor, zeros: Tensor, elements: Tensor, global_step: int = 0) -> Tensor:
    """The rows of one optimizer step.

    Args:
        norms: L2 norms, shape ``(n,)``.
        zeros: Zero elements, shape ``(n,)``.
        elements: Sizes, shape ``(n,)``.
        global_step: The trainer's, before the step.

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
    rows[:, ParameterColumn.FIRST_NONFINITE] = torch.where(finite, torch.inf, global_step)
    return rows


def merge_parameter_rows(rows: Tensor) -> Tensor:
    """Merge parameter rows along the first dimension: ``(k, n, columns)`` to ``(n, columns)``."""
    merged = rows.sum(0)
    merged[..., ParameterColumn.NORM_MAX] = rows[..., ParameterColumn.NORM_MAX].amax(0)
    merged[..., ParameterColumn.FIRST_NONFINITE] = rows[..., ParameterColumn.FIRST_NONFINITE].amin(0)
    return merged


def merge_ranks(rows: Tensor) -> Tensor:
    """Merge what ranks measured of the same optimizer steps: ``(world, n, columns)`` to ``(n, columns)``.

    Gradients at the optimizer step are most often the same on every rank, and so are the rows: then they count once. Where they are
    not (local SGD, ``no_sync``, parameters that DDP ignores) each rank's steps count.
    """
    same = (rows == rows[0]).all(0).all(-1, keepdim=True)
    return torch.where(same, rows[0], merge_parameter_rows(rows))


class WeightPlan(NamedTuple):
    """What is the same whenever the same parameters are sampled.

    Attributes:
        places: Where they lie, if the compiled path can read them.
        counts: How many elements of each are taken, int64, shape ``(n,)``.
        strides: How far apart, int64, shape ``(n,)``.
        total: How many elements in all.
    """

    places: Places | None
    counts: Tensor
    strides: Tensor
    total: int

    @classmethod
    def of(cls, parameters: Sequence[Tensor], places: Places | None) -> WeightPlan:
        """The plan for parameters that lie at ``places``."""
        taken = [spacing(p.numel(), p.numel() // p.shape[0] if p.dim() and p.shape[0] else 1) for p in parameters]
        counts, strides = zip(*taken, strict=True)
        usable = places if places is not None and places.dtype in (torch.float32, torch.float64) else None
        return cls(usable, fixed(counts), fixed(strides), sum(counts))


class WeightSample:
    """Copies of parts of parameters before an update, to tell its size after it.

    Of a parameter with up to ``UPDATE_SAMPLE`` elements all are taken, so its ratio is exact; of a larger one a quarter as
    many, evenly spread over all its columns. The relative standard error of a norm estimated from n elements is about
    sqrt((kurtosis - 1) / 4n): 1.1 % for normally distributed values.

    Args:
        parameters: Plain dense tensors on one device.
        plan: The ``plan`` of an earlier sample of the same parameters; it is used again if it still holds.
    """

    def __init__(self, parameters: Sequence[Tensor], plan: WeightPlan | None = None) -> None:
        parameters = [as_real(parameter) for parameter in parameters]
        fast, places = native(), located(parameters, None if plan is None else plan.places)
        if plan is None or places is None or places is not plan.places:
            plan = WeightPlan.of(parameters, places)
        self.plan = plan
        self._taken: Any
        if fast is None or plan.places is None:
            self._taken = [every(p, stride) for p, stride in zip(parameters, plan.strides.tolist(), strict=True)]
        else:
            self._taken = fast.sample(plan.places, plan.counts, plan.strides, plan.total)

    def ratios(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖after - before‖ / ‖before‖ of each parameter.

        Args:
            parameters: The same, after the update.

        Returns:
            Shape ``(n,)``, in the row's dtype; NaN or infinite for weights of zeros, and for those that became others.
        """
        parameters = [as_real(parameter) for parameter in parameters]
        fast = native()
        plan = self.plan
        if fast is not None and plan.places is not None:
            places = located(parameters, plan.places)
            if places is not plan.places and (
                places is None or places.dtype != plan.places.dtype or places.counts != plan.places.counts
            ):
                return torch.full((plan.places.n,), math.nan, dtype=torch.float64)  # they became others, or were freed
            return fast.ratios(places, plan.counts, plan.strides, self._taken)
        after = [every(p, stride) for p, stride in zip(parameters, plan.strides.tolist(), strict=True)]
        pairs = [(a, b) if a.shape == b.shape else (a[:0], a[:0]) for a, b in zip(after, self._taken, strict=True)]
        after, before = [a for a, _ in pairs], [b for _, b in pairs]
        updates = torch._foreach_norm(torch._foreach_sub(after, before))
        weights = torch._foreach_norm(before)
        dtype = row_dtype(parameters[0].device)
        return torch.stack(updates).to(dtype) / torch.stack(weights).to(dtype)


def every(parameter: Tensor, stride: int) -> Tensor:
    """A copy of every stride-th element, in float32 at least."""
    flat = plain_values(parameter).reshape(-1)[::stride]
    return flat.to(torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True)


@functools.lru_cache(maxsize=4096)
def spacing(numel: int, columns: int, sample: int = UPDATE_SAMPLE) -> tuple[int, int]:
    """How many elements of a parameter to take, and how far apart: all of up to ``sample``, of more a quarter as many."""
    if numel <= sample:
        return numel, 1
    stride = 4 * numel // sample
    while math.gcd(stride, columns) != 1:  # a common factor would visit some columns only
        stride += 1
    return -(-numel // stride), stride
