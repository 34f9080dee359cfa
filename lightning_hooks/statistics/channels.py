"""Exact mean and standard deviation of each channel, over any number of batches and ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.moments import pool


def channel_moments(values: Tensor, dim: int | None) -> Tensor:
    """Return the count, mean and sum of squared deviations of each channel's finite values, without a host sync.

    Args:
        values: Real, any dtype and shape.
        dim: The dimension of the channels; None for all values together.

    Returns:
        Shape ``(3, channels)``, float64 where the device has it; one channel for ``dim=None``.
    """
    dtype = row_dtype(values.device)
    x = values if values.dtype in (torch.float32, torch.float64) else values.float()
    flat = x.reshape(1, -1) if dim is None else x.movedim(dim, 0).reshape(x.shape[dim], -1)
    finite = torch.isfinite(flat)
    count = finite.sum(1, dtype=dtype)
    divisor = count.clamp(min=1)
    kept = torch.where(finite, flat, 0)
    pivot = (kept.sum(1, dtype=dtype) / divisor).to(x.dtype)
    deviation = torch.where(finite, flat - pivot[:, None], 0).to(dtype)
    shift = deviation.sum(1)
    m2 = (deviation.square().sum(1) - shift * shift / divisor).clamp(min=0)
    return torch.stack((count, pivot.to(dtype) + shift / divisor, m2))


def merge_moments(moments: Tensor) -> Tensor:
    """Merge the moments of several batches or ranks, ``(k, 3, channels)`` to ``(3, channels)``."""
    return torch.stack(pool(moments[:, 0], moments[:, 1], moments[:, 2]))


def mean_and_std(moments: Tensor) -> tuple[Tensor, Tensor]:
    """Return each channel's mean and (population) standard deviation, of shape ``(channels,)``.

    A channel that does not vary gets 1, as something to divide by; one without values mean 0 and standard deviation 1.
    """
    count, mean, m2 = moments
    std = (m2 / count.clamp(min=1)).sqrt()
    # What is left of a constant channel after rounding is no variation.
    return mean, torch.where(std > 1e-10 * mean.abs(), std, 1.0)
