"""Scale and zero point that quantise a range of values to eight bits, and the choice of ranges from histograms that grow.

NaN and infinite values are left out, and on an accelerator there is no host sync.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.ao.quantization.utils import determine_qparams

from lightning_hooks.hooks.checks import check_choice
from lightning_hooks.hooks.tensors import number
from lightning_hooks.statistics.histograms import counts_of

LEVELS = {"int8": (torch.qint8, -128, 127), "uint8": (torch.quint8, 0, 255)}
"""The type of each name, and its smallest and largest integer."""

SCHEMES = {"affine": torch.per_tensor_affine, "symmetric": torch.per_tensor_symmetric}
_EPS = torch.tensor(torch.finfo(torch.float32).eps)  # the smallest scale


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
    kind, smallest, largest = LEVELS[dtype]
    scales, zero_points = determine_qparams(low, high, smallest, largest, kind, _EPS, False, SCHEMES[scheme])
    return scales.float().view(low.shape), zero_points.view(low.shape)


def check_levels(dtype: object, scheme: object) -> None:
    """Raise ValueError unless ``dtype`` and ``scheme`` are known."""
    check_choice("dtype", dtype, LEVELS)
    check_choice("scheme", scheme, SCHEMES)


UPSAMPLING = 16
"""The number of parts into which a bin is split when its counts move to wider bins."""


def add_values(histogram: Tensor, ends: Tensor, values: Tensor, found: Tensor) -> None:
    """Add values to a histogram, in place; its range grows as needed.

    Args:
        histogram: Counts, float32, ``(bins,)``; all zero while empty.
        ends: Its lower and upper end, float32, ``(2,)``; (inf, -inf) while empty. Updated.
        values: float32, any shape.
        found: The smallest and largest finite one, ``(2,)``.
    """
    new, bins = wider(ends, found), histogram.shape[0]
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        finite = torch.isfinite(values)
        inside = values if number(finite.all()) else values[finite]
        if inside.numel():
            kept = histogram if torch.equal(new, ends) else moved(histogram, ends, new)
            histogram.copy_(kept + torch.histc(inside, bins, *map(number, new)))
    else:
        histogram.copy_(moved(histogram, ends, new) + _counts(values.reshape(-1), new, bins))
    ends.copy_(new)


def wider(known: Tensor, found: Tensor) -> Tensor:
    """Return the ranges that contain both of two ranges: lower ends in the first row, upper ends in the second."""
    return torch.stack((torch.minimum(known[0], found[0]), torch.maximum(known[1], found[1])))


def moved(histogram: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Return a histogram's counts in the bins of a range that contains its own, without a host sync, on any device; traceable.

    Each bin is split into ``UPSAMPLING`` parts, and each part moves to the new bin that contains its middle. The sum stays.
    """
    bins = histogram.shape[0]
    parts = bins * UPSAMPLING
    middles = old[0] + (torch.arange(parts, device=old.device) + 0.5) * ((old[1] - old[0]) / parts)
    edges = new[0] + torch.arange(bins + 1, device=new.device) * ((new[1] - new[0]) / bins)
    places = (torch.bucketize(middles, edges, right=True) - 1).clamp(0, bins - 1)
    # Counts are multiples of powers of 1/16: in float64 their sums are exact in any order.
    weights = histogram.to(torch.float64 if histogram.device.type != "mps" else torch.float32) / UPSAMPLING
    target = torch.zeros(bins, dtype=weights.dtype, device=weights.device)
    spread = target.scatter_add(0, places, weights.repeat_interleave(UPSAMPLING, output_size=parts)).to(histogram.dtype)
    return torch.where((old == new).all(), histogram, spread)


def _counts(flat: Tensor, ends: Tensor, bins: int) -> Tensor:
    """Return ``torch.histc`` of the finite values, without its host sync."""
    distinct = (ends[1] > ends[0]).to(ends.dtype)
    low, high = ends[0] - (1 - distinct), ends[1] + (1 - distinct)  # a single value: as histc does

    def places_of(chunk: Tensor) -> Tensor:
        finite = torch.isfinite(chunk)
        places = torch.where(finite, (chunk - low) * bins / (high - low), 0.0).to(torch.int64).clamp(0, bins - 1)
        return torch.where(finite, places, bins)

    return counts_of(flat, places_of, bins).to(torch.float32)


def percentile_range(histogram: Tensor, ends: Tensor, percentile: float) -> tuple[float, float]:
    """Return the range that holds the middle ``percentile`` percent of the values, with equal shares cut off below and above.

    The histogram is on the host; the ends are interpolated within a bin.
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
