"""Ranges of activations, and the scale and zero point of a quantiser that they give.

NaN and infinite values are left out, and on an accelerator there is no host sync before a table is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.ao.quantization.utils import determine_qparams

from lightning_hooks.hooks.checks import check_choice
from lightning_hooks.hooks.tensors import float_tensors, number, plain_values
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.histograms import counts_of
from lightning_hooks.statistics.reduction import REST, Merging, Span, Spans, TableIndex

__all__ = ["ActivationRange", "RangeTable", "quantization_parameters"]

# The type of each name, and its smallest and largest integer.
LEVELS = {"int8": (torch.qint8, -128, 127), "uint8": (torch.quint8, 0, 255)}

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


UPSAMPLING = 16  # the number of parts into which a bin is split when its counts move to wider bins


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


METHODS = ("minmax", "moving_average", "percentile")  # the methods for choosing a range

_CALLS, _COUNT, _NONFINITE, _COUNTERS = 0, 1, 2, 3
_SEEN, _AVERAGE = slice(0, 2), slice(2, 4)  # columns of ``ends``: the extremes, and their moving average


class RangeTable:
    """Ranges of all sites, on the device. There is no host sync before :meth:`read`.

    Args:
        names: The names of the sites.
        device: The device of the table.
        method: As for :class:`~lightning_hooks.ActivationRangeObserver`, and so is ``percentile``.
        averaging_constant: Weight of a new call in the moving average, above 0 and at most 1.
        bins: Number of bins of the histogram of ``percentile`` (8 kB per site at 2048).
    """

    def __init__(
        self,
        names: Sequence[str],
        device: torch.device | str = "cpu",
        *,
        method: str = "minmax",
        averaging_constant: float = 0.01,
        bins: int = 2048,
        percentile: float = 99.99,
    ) -> None:
        self.names = list(names)
        self.method, self.averaging_constant, self.percentile = method, averaging_constant, percentile
        device = torch.device(device)
        self.counters = torch.zeros((len(names), _COUNTERS), dtype=row_dtype(device), device=device)
        self.ends = torch.empty((len(names), 4), device=device)  # float32, as in torch.ao's observers
        self.histograms = torch.zeros((len(names), bins if method == "percentile" else 0), device=device)
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self.counters.zero_()
        self.histograms.zero_()
        self.ends[:, ::2] = math.inf
        self.ends[:, 1::2] = -math.inf

    @torch.no_grad()
    def add(self, index: int, output: Any) -> None:
        """Add the output of one call at site ``index``. No host sync; no tensor is kept."""
        for position, values in enumerate([plain_values(tensor) for tensor in float_tensors(output)]):
            self._add_tensor(index, values.float().to(self.ends.device, non_blocking=True), position == 0)

    def _add_tensor(self, index: int, values: Tensor, new_call: bool) -> None:
        counters, ends = self.counters[index], self.ends[index]
        if new_call:
            counters[_CALLS] += 1
        if not values.numel():
            return
        found, nonfinite = finite_extremes(values)
        counters[_NONFINITE] += nonfinite
        counters[_COUNT] += values.numel() - nonfinite
        if self.histograms.shape[1]:
            add_values(self.histograms[index], ends[_SEEN], values, found)
        else:
            ends[_SEEN] = wider(ends[_SEEN], found)
        if self.method == "moving_average":
            average = ends[_AVERAGE]
            moved = torch.where(torch.isinf(average), found, average + self.averaging_constant * (found - average))
            average.copy_(torch.where(torch.isinf(found), average, moved))

    def pack(self) -> Tensor:
        """Return the table as one vector, of the same length on every rank."""
        return torch.cat([part.to(self.counters.dtype).flatten() for part in (self.counters, self.ends, self.histograms)])

    def unpack(self, packed: Tensor) -> None:
        """Restore a vector of :meth:`pack` or of a merge."""
        for own, part in zip((self.counters, self.ends, self.histograms), self._parts(packed), strict=True):
            own.copy_(part)

    @property
    def spans(self) -> Spans:
        """How the packed tables of ranks and of windows merge."""
        return (Span(REST, self._merged),)

    def _merged(self, own: Tensor, among: TableIndex) -> Merging:
        """The merge of packed tables.

        Extremes and histograms are those of all values. A moving average becomes the mean of the averages of the tables that have
        one: that of the mean extremes, if each rank called the site equally often.
        """
        counters, ends, histograms = self._parts(own)
        found = yield torch.stack((-ends[:, ::2], ends[:, 1::2]))
        joint = torch.stack((-found[0], found[1]), -1)  # seen and average
        if histograms.shape[1]:
            histograms = torch.stack(
                [moved(*line) for line in zip(histograms.float(), ends[:, _SEEN].float(), joint[:, 0].float(), strict=True)]
            )
        called = torch.isfinite(ends[:, _AVERAGE])
        known = yield torch.cat((counters, torch.where(called, ends[:, _AVERAGE], 0), called, histograms), 1)
        yield own.new_empty(0)
        counters, summed, tables, histograms = torch.split(known, [_COUNTERS, 2, 2, histograms.shape[1]], 1)
        joint[:, 1] = torch.where(tables > 0, summed / tables.clamp(min=1), joint[:, 1])
        return torch.cat([part.flatten() for part in (counters, joint, histograms)])

    def _parts(self, packed: Tensor) -> tuple[Tensor, ...]:
        """The counters, ends and histograms of a packed table."""
        tables = (self.counters, self.ends, self.histograms)
        found = torch.split(packed, [table.numel() for table in tables])
        return tuple(part.view(table.shape) for part, table in zip(found, tables, strict=True))

    def read(
        self, packed: Tensor, dtype: str = "int8", scheme: str = "affine"
    ) -> tuple[dict[str, ActivationRange], tuple[str, ...]]:
        """Return the ranges of a table of :meth:`pack` or of a merge, on the host, and the names of the sites that were not called.

        A range is NaN, with scale 1, where no value was finite.
        """
        counters, *others = self._parts(packed)
        sites: dict[str, ActivationRange] = {}
        for name, (calls, count, nonfinite), *of_site in zip(self.names, counters.tolist(), *others, strict=True):
            ends, histogram = (part.float() for part in of_site)
            if calls and not count:  # only NaN and infinite values, or no values
                nan = math.nan
                sites[name] = ActivationRange(nan, nan, 1.0, 0, nan, nan, round(calls), 0, 1.0 if nonfinite else nan)
            elif calls:
                if self.method == "percentile":
                    chosen = torch.tensor(percentile_range(histogram, ends[_SEEN], self.percentile))
                else:
                    chosen = ends[_AVERAGE if self.method == "moving_average" else _SEEN]
                scale, zero_point = quantization_parameters(chosen[0], chosen[1], dtype, scheme)
                sites[name] = ActivationRange(
                    min=float(chosen[0]),
                    max=float(chosen[1]),
                    scale=float(scale),
                    zero_point=int(zero_point),
                    smallest=float(ends[0]),
                    largest=float(ends[1]),
                    calls=round(calls),
                    count=round(count),
                    nonfinite_fraction=nonfinite / (count + nonfinite),
                )
        return sites, tuple(name for name in self.names if name not in sites)


def finite_extremes(values: Tensor) -> tuple[Tensor, Tensor | int]:
    """Return the smallest and largest finite value, ``(2,)``, (inf, -inf) without any, and the number of nonfinite values."""
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        found = torch.stack(torch.aminmax(values))
        if math.isfinite(number(found[0])) and math.isfinite(number(found[1])):  # aminmax propagates NaN
            return found, 0
    finite = torch.isfinite(values)
    found = torch.stack((torch.where(finite, values, math.inf).amin(), torch.where(finite, values, -math.inf).amax()))
    return found, values.numel() - finite.sum()


def check_range_options(method: object, percentile: object) -> None:
    """Raise TypeError or ValueError if an option of :class:`RangeTable` is of a wrong type or out of range."""
    check_choice("method", method, METHODS)
    if isinstance(percentile, bool) or not isinstance(percentile, int | float):
        raise TypeError(f"percentile must be a number; got {percentile!r}.")
    if not 0 < percentile <= 100:
        raise ValueError(f"percentile must be above 0 and at most 100 (percent of the values kept); got {percentile!r}.")
