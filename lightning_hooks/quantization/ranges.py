"""The table of activation ranges, from which the ranges to quantise are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.checks import check_choice, check_count
from lightning_hooks.hooks.tensors import float_tensors, number, plain_values
from lightning_hooks.quantization.scales import (
    ActivationRange,
    add_values,
    moved,
    percentile_range,
    quantization_parameters,
    wider,
)
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import REST, Merging, Span, Spans, TableIndex

METHODS = ("minmax", "moving_average", "percentile")
"""The methods for choosing a range."""

_CALLS, _COUNT, _NONFINITE, _COUNTERS = 0, 1, 2, 3
_SEEN, _AVERAGE = slice(0, 2), slice(2, 4)  # columns of ``ends``: the extremes, and their moving average


class RangeTable:
    """Ranges of all sites, on the device. There is no host sync before :meth:`read`.

    Args:
        names: The names of the sites.
        device: The device of the table.
        method: As for :class:`~lightning_hooks.ActivationRangeObserver`, and so are the others.
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
        n_bins = bins if method == "percentile" else 0
        self.histograms = torch.zeros((len(names), n_bins), device=device)
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
        tensors = [plain_values(tensor) for tensor in float_tensors(output)]
        for position, values in enumerate(tensors):
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
            lines = zip(histograms.float(), ends[:, _SEEN].float(), joint[:, 0].float(), strict=True)
            histograms = torch.stack([moved(*line) for line in lines])
        average = ends[:, _AVERAGE]
        called = torch.isfinite(average)
        known = yield torch.cat((counters, torch.where(called, average, 0), called, histograms), 1)
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
                low, high = self._range(ends, histogram)
                scale, zero_point = quantization_parameters(low, high, dtype, scheme)
                sites[name] = ActivationRange(
                    min=float(low),
                    max=float(high),
                    scale=float(scale),
                    zero_point=int(zero_point),
                    smallest=float(ends[0]),
                    largest=float(ends[1]),
                    calls=round(calls),
                    count=round(count),
                    nonfinite_fraction=nonfinite / (count + nonfinite),
                )
        return sites, tuple(name for name in self.names if name not in sites)

    def _range(self, ends: Tensor, histogram: Tensor) -> tuple[Tensor, Tensor]:
        if self.method == "percentile":
            found = torch.tensor(percentile_range(histogram, ends[_SEEN], self.percentile))
        else:
            found = ends[_AVERAGE if self.method == "moving_average" else _SEEN]
        return found[0], found[1]


def finite_extremes(values: Tensor) -> tuple[Tensor, Tensor | int]:
    """Return the smallest and largest finite value, ``(2,)``, (inf, -inf) without any, and the number of nonfinite values."""
    if values.device.type == "cpu" and not torch.compiler.is_compiling():
        found = torch.stack(torch.aminmax(values))
        if math.isfinite(number(found[0])) and math.isfinite(number(found[1])):  # aminmax propagates NaN
            return found, 0
    finite = torch.isfinite(values)
    found = torch.stack((torch.where(finite, values, math.inf).amin(), torch.where(finite, values, -math.inf).amax()))
    return found, values.numel() - finite.sum()


def check_range_options(method: object, averaging_constant: object, bins: object, percentile: object) -> None:
    """Raise TypeError or ValueError if an option of :class:`RangeTable` is of a wrong type, or does not go with the others."""
    check_choice("method", method, METHODS)
    for name, value in (("averaging_constant", averaging_constant), ("percentile", percentile)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} must be a number; got {value!r}.")
    if not 0 < averaging_constant <= 1:  # type: ignore[operator]  # a number, as just checked
        raise ValueError(
            f"averaging_constant must be above 0 and at most 1 (the weight of a new call); got {averaging_constant!r}."
        )
    if not 0 < percentile <= 100:  # type: ignore[operator]
        raise ValueError(f"percentile must be above 0 and at most 100 (percent of the values kept); got {percentile!r}.")
    check_count("bins", bins, least=2)
