"""Scale and zero point that quantise a range of values to eight bits, and the choice of ranges from histograms that grow.

On the CPU the histograms equal those of ``torch.ao.quantization.HistogramObserver`` in every bin, with two differences: NaN and
infinite values are left out (there NaN raises), and on an accelerator there is no host sync.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.hooks.checks import check_choice
from lightning_hooks.statistics.host_copies import number

LEVELS: dict[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""The smallest and largest integer of each type."""

SCHEMES = ("affine", "symmetric")
_EPS = torch.finfo(torch.float32).eps  # the smallest scale


@dataclass(frozen=True, slots=True)
class ChannelRange:
    """The range of one channel.

    Attributes:
        min: Its lower end.
        max: Its upper end.
        scale: Width of a quantisation step, above 0.
        zero_point: The integer that represents 0.
    """

    min: float
    max: float
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class ActivationRange:
    """The range of a module's output in an epoch, and its quantisation: ``q = clamp(round(x / scale) + zero_point)``.

    Attributes:
        min: Lower end of the range; smaller values are clamped.
        max: Upper end; larger values are clamped.
        scale: Width of a quantisation step, above 0.
        zero_point: The integer that represents 0.
        smallest: The smallest finite value.
        largest: The largest finite value.
        calls: Number of sampled calls.
        count: Number of finite values.
        nonfinite_fraction: Share of NaN and infinite values, 0 to 1, which are in no range.
        channels: The ranges of the output's channels, if ``channel_dim`` is given.
    """

    min: float
    max: float
    scale: float
    zero_point: int
    smallest: float
    largest: float
    calls: int
    count: int
    nonfinite_fraction: float
    channels: tuple[ChannelRange, ...] = ()


def quantization_parameters(low: Tensor, high: Tensor, dtype: str = "int8", scheme: str = "affine") -> tuple[Tensor, Tensor]:
    """Return the scales and zero points that map ranges to eight bits, as ``torch.ao``'s observers do.

    Affine: the range, extended to contain 0, maps to all levels, and the zero point is the level of 0. Symmetric: the range is that
    of the larger absolute end, on both sides of 0. See Jacob et al., "Quantization and training of neural networks for efficient
    integer-arithmetic-only inference" (2018).

    Args:
        low: Lower ends, float32, any shape.
        high: Upper ends, of the same shape.
        dtype: ``int8`` or ``uint8``.
        scheme: ``affine`` or ``symmetric``.

    Returns:
        Scales (float32, above 0) and zero points (int64), of the shape of ``low``.

    Raises:
        ValueError: If ``dtype`` or ``scheme`` is unknown.
    """
    check_levels(dtype, scheme)
    smallest, largest = LEVELS[dtype]
    negative, positive = low.clamp(max=0.0), high.clamp(min=0.0)
    if scheme == "symmetric":
        scale = torch.maximum(-negative, positive) / (float(largest - smallest) / 2)
        zero = torch.full_like(scale, 0 if dtype == "int8" else 128, dtype=torch.int64)
        return scale.clamp(min=_EPS), zero
    scale = ((positive - negative) / float(largest - smallest)).clamp(min=_EPS)
    zero = smallest - torch.round(negative / scale).to(torch.int64)
    return scale, zero.clamp(smallest, largest)


def check_levels(dtype: object, scheme: object) -> None:
    """Raise ValueError unless ``dtype`` and ``scheme`` are known."""
    check_choice("dtype", dtype, LEVELS)
    check_choice("scheme", scheme, SCHEMES)


UPSAMPLING = 16
"""The number of parts into which a bin is split when its counts move to wider bins."""

_CHUNK = 1 << 22  # values binned at a time on an accelerator: each takes eight bytes for its int64 index
_STEP = 1e-5  # of the cumulated share, in the search for the range of least error
_QUANTIZED_BINS = 256


def add_values(histogram: Tensor, ends: Tensor, values: Tensor, found: Tensor) -> None:
    """Add values to a histogram, in place; its range grows as needed.

    Args:
        histogram: Counts, float32, ``(bins,)``; all zero while empty.
        ends: Its lower and upper end, float32, ``(2,)``; (inf, -inf) while empty. Updated.
        values: float32, any shape.
        found: The smallest and largest finite one, ``(2,)``.
    """
    new = torch.stack((torch.minimum(ends[0], found[0]), torch.maximum(ends[1], found[1])))
    on_host = values.device.type == "cpu" and not torch.compiler.is_compiling()
    if on_host:
        if math.isinf(number(found[0])):  # nothing finite
            return
        finite = torch.isfinite(values)
        values = values if number(finite.all()) else values[finite]
        update = torch.histc(values, histogram.shape[0], min=number(new[0]), max=number(new[1]))
    else:
        update = _counts(values.reshape(-1), new, histogram.shape[0])
    histogram.copy_(moved(histogram, ends, new) + update)
    ends.copy_(new)


def moved(histogram: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return a histogram's counts in the bins of a range that contains its own.

    Each bin is split into ``UPSAMPLING`` parts, and each part moves to the new bin that contains its middle.

    Args:
        histogram: Counts, float32, ``(bins,)``.
        old: Its two ends, ``(2,)``.
        new: The new two ends, ``(2,)``.

    Returns:
        Counts of the same sum, ``(bins,)``.
    """
    bins = histogram.shape[0]
    if histogram.device.type != "cpu" or torch.compiler.is_compiling():
        return torch.where((old == new).all(), histogram, _spread(histogram, old, new))
    (low, high), (new_low, new_high) = map(number, old), map(number, new)
    if (low, high) == (new_low, new_high) or math.isinf(low):
        return histogram
    if low == high:
        return torch.histc(old[:1], bins, min=new_low, max=new_high) * histogram.sum()
    parts = bins * UPSAMPLING
    middles = torch.linspace(low, high, parts + 1)[:-1] + 0.5 * ((old[1] - old[0]) / parts)
    edges = torch.linspace(new_low, new_high, bins + 1)
    places = (torch.bucketize(middles, edges, right=True) - 1).clamp_(0, bins - 1)
    weights = histogram.repeat_interleave(UPSAMPLING) / UPSAMPLING
    return torch.bincount(places, weights=weights, minlength=bins)


def _counts(flat: Tensor, ends: Tensor, bins: int) -> Tensor:
    """Return ``torch.histc`` of the finite values, without its host sync."""
    distinct = (ends[1] > ends[0]).to(ends.dtype)
    low, high = ends[0] - (1 - distinct), ends[1] + (1 - distinct)  # a single value: as histc does
    counts = torch.zeros(bins + 1, dtype=torch.int64, device=flat.device)  # the last bin is for nonfinite values
    one = torch.ones((), dtype=torch.int64, device=flat.device)
    for start in range(0, flat.shape[0], _CHUNK):
        chunk = flat[start : start + _CHUNK]
        finite = torch.isfinite(chunk)
        places = torch.where(finite, (chunk - low) * bins / (high - low), 0.0).to(torch.int64).clamp(0, bins - 1)
        places = torch.where(finite, places, bins)
        counts.scatter_add_(0, places, one.expand(places.shape))
    return counts[:bins].to(torch.float32)


def _spread(histogram: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return :func:`moved` without a host sync, on any device; traceable."""
    bins = histogram.shape[0]
    parts = bins * UPSAMPLING
    middles = old[0] + (torch.arange(parts, device=old.device) + 0.5) * ((old[1] - old[0]) / parts)
    edges = new[0] + torch.arange(bins + 1, device=new.device) * ((new[1] - new[0]) / bins)
    places = (torch.bucketize(middles, edges, right=True) - 1).clamp(0, bins - 1)
    # Counts are multiples of powers of 1/16: in float64 their sums are exact in any order.
    weights = histogram.to(torch.float64 if histogram.device.type != "mps" else torch.float32) / UPSAMPLING
    target = torch.zeros(bins, dtype=weights.dtype, device=weights.device)
    return target.scatter_add(0, places, weights.repeat_interleave(UPSAMPLING, output_size=parts)).to(histogram.dtype)


def percentile_range(histogram: Tensor, ends: Tensor, percentile: float) -> tuple[float, float]:
    """Return the range that holds the middle ``percentile`` percent of the values, with equal shares cut off below and above.

    Args:
        histogram: Counts on the host, ``(bins,)``.
        ends: Its two ends, ``(2,)``.
        percentile: Above 0, at most 100.

    Returns:
        Its two ends, interpolated within a bin.
    """
    counts = histogram.double().numpy()
    low, high = ends.double().tolist()
    cumulated = np.concatenate(([0.0], np.cumsum(counts)))
    edges = np.linspace(low, high, counts.shape[0] + 1)
    tail = (1 - percentile / 100) / 2 * cumulated[-1]
    occupied = np.flatnonzero(counts)
    inner = slice(int(occupied[0]), int(occupied[-1]) + 2)  # an empty bin at an end has no values to interpolate
    found = np.interp([tail, cumulated[-1] - tail], cumulated[inner], edges[inner])
    return float(found[0]), float(found[1])


def least_error_range(histogram: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of (nearly) least squared quantisation error: the search of ``HistogramObserver``.

    It cuts off shares of the values on the side with more bins for the same share, until the error grows.

    Args:
        histogram: Counts on the host, float32, ``(bins,)``.
        ends: Its two ends, float32, ``(2,)``.

    Returns:
        Two 0-d float32 tensors.
    """
    bins = histogram.shape[0]
    low, high = number(ends[0]), number(ends[1])
    width = (high - low) / bins
    cumulated = torch.cumsum(histogram, dim=0).numpy()
    rising, falling = _shares()
    total = number(histogram.sum())
    # Compared as float32, as torch compares a float32 tensor with a Python number.
    below, above = (rising * total).astype(np.float32), -(falling * total).astype(np.float32)
    start, end = 0, bins - 1
    i = j = 0  # steps taken from below and from above
    least = math.inf
    while start < end and rising[i] < falling[j]:
        left = min(max(int(np.searchsorted(cumulated, below[i + 1])), start), end)
        if left == start:  # the next move is from above: skip the steps that cut off no bin
            j = max(j, int(np.searchsorted(above, -cumulated[end], side="right")) - 1)
            if rising[i] >= falling[j]:
                break
        right = max(min(int(np.searchsorted(cumulated, -above[j + 1], side="right")) - 1, end), start)
        next_start, next_end = start, end
        if left - start > end - right:
            next_start = left
            i += 1
        else:
            next_end = right
            j += 1
        if (next_start, next_end) == (start, end):
            continue
        error = _quantization_error(histogram, width, next_start, next_end)
        if error > least:
            break
        least, start, end = error, next_start, next_end
    step = (ends[1] - ends[0]) / bins
    return ends[0] + step * start, ends[0] + step * (end + 1)


@cache
def _shares() -> tuple[np.ndarray, np.ndarray]:
    """Return the shares of the search from below and from above, with the same rounding."""
    steps = np.full(round(1 / _STEP) + 2, _STEP)
    return np.cumsum(np.concatenate(([0.0], steps))), np.cumsum(np.concatenate(([1.0], -steps)))


def _quantization_error(histogram: Tensor, width: float, start: int, end: int) -> float:
    """Squared error of rounding to 256 levels between the bins ``start`` and ``end``, values spread evenly in each bin."""
    level = width * (end - start + 1) / _QUANTIZED_BINS
    if level == 0.0:
        return 0.0
    begins = (torch.arange(histogram.shape[0]) - start) * width
    ends = begins + width
    first = torch.div(begins, level, rounding_mode="floor").clamp(0, _QUANTIZED_BINS - 1)
    last = torch.div(ends, level, rounding_mode="floor").clamp(0, _QUANTIZED_BINS - 1)
    density = histogram / width
    half = torch.tensor(level / 2)

    def error(low: Tensor, high: Tensor) -> Tensor:
        """The error of values spread evenly between two distances from the middle of a level."""
        return density * ((high * high * high - low * low * low) / 3)

    whole = (last - first - 1) * error(-half, half)
    return float(
        (error(begins - (first + 0.5) * level, half) + whole + error(-half, ends - (last * level + level / 2))).sum().item()
    )
