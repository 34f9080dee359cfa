"""The table of activation ranges, from which the ranges to quantise are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.checks import check_choice, check_count, check_optional_integer
from lightning_hooks.hooks.tensors import float_tensors, number, plain_values
from lightning_hooks.quantization.scales import (
    ActivationRange,
    ChannelRange,
    add_values,
    least_error_range,
    moved,
    percentile_range,
    quantization_parameters,
    wider,
)
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import REST, Merging, Span, Spans, TableIndex
from lightning_hooks.statistics.rows import lasting

METHODS = ("minmax", "moving_average", "histogram", "percentile")
"""The methods for choosing a range."""

_CALLS, _COUNT, _NONFINITE, _COUNTERS = 0, 1, 2, 3
_SEEN, _AVERAGE = slice(0, 2), slice(2, 4)  # columns of ``ends``: the extremes, and their moving average


class RangeTable:
    """Ranges of all sites, on the device. There is no host sync before :meth:`read`.

    Args:
        names: The names of the sites.
        device: The device of the table.
        capacity: Number of channels per site; 0 for no limit.
        method: As for :class:`~lightning_hooks.ActivationRangeObserver`, and so are the others.
    """

    def __init__(
        self,
        names: Sequence[str],
        device: torch.device | str = "cpu",
        capacity: int = 0,
        *,
        method: str = "minmax",
        averaging_constant: float = 0.01,
        bins: int = 2048,
        percentile: float = 99.99,
        channel_dim: int | None = None,
    ) -> None:
        self.names = list(names)
        self.method, self.averaging_constant, self.percentile = method, averaging_constant, percentile
        self.channel_dim, self.capacity = channel_dim, capacity
        device = torch.device(device)
        self.counters = torch.zeros((len(names), _COUNTERS), dtype=row_dtype(device), device=device)
        self.ends = torch.empty((len(names), 4), device=device)  # float32, as in torch.ao's observers
        n_bins = bins if method in ("histogram", "percentile") else 0
        self.histograms = torch.zeros((len(names), n_bins), device=device)
        self.channels: dict[int, Tensor] = {}  # site -> (2, channels), extremes
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self.counters.zero_()
        self.histograms.zero_()
        self.ends[:, ::2] = math.inf
        self.ends[:, 1::2] = -math.inf
        for known in self.channels.values():
            known[0], known[1] = math.inf, -math.inf

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
        if self.channel_dim is not None and -values.dim() <= self.channel_dim < values.dim():
            self._add_channels(index, values)

    def _add_channels(self, index: int, values: Tensor) -> None:
        flat = values.movedim(self.channel_dim or 0, 0).reshape(values.shape[self.channel_dim or 0], -1)
        finite = torch.isfinite(flat)
        found = torch.stack((torch.where(finite, flat, math.inf).amin(1), torch.where(finite, flat, -math.inf).amax(1)))
        if self.capacity and found.shape[1] > self.capacity:
            return  # every rank has the same capacity, from the model's parameters
        known = self.channels.get(index, found[:, :0])
        if known.shape[1] < found.shape[1]:
            grown = self.channels[index] = lasting(lambda: torch.full_like(found, math.inf))
            grown[1] = -math.inf
            grown[:, : known.shape[1]] = known
            known = grown
        part = known[:, : found.shape[1]]
        part.copy_(wider(part, found))

    def pack(self) -> Tensor:
        """Return the table as one vector, of the same length on every rank if ``capacity`` is set."""
        width = 0
        if self.channel_dim is not None:
            width = self.capacity or max((known.shape[1] for known in self.channels.values()), default=0)
        channels = torch.empty((len(self.names), 2, width), device=self.ends.device)
        channels[:, 0], channels[:, 1] = math.inf, -math.inf
        for index, known in self.channels.items():
            channels[index, :, : known.shape[1]] = known
        parts = (self.counters, self.ends, self.histograms, channels)
        return torch.cat([part.to(self.counters.dtype).flatten() for part in parts])

    def unpack(self, packed: Tensor) -> None:
        """Restore a vector of :meth:`pack` or of a merge."""
        counters, ends, histograms, channels = self._parts(packed.to(self.ends.device))
        self.counters.copy_(counters)
        self.ends.copy_(ends)
        self.histograms.copy_(histograms)
        if channels.shape[-1]:
            self.channels = {index: known.float() for index, known in enumerate(channels)}

    @property
    def spans(self) -> Spans:
        """How the packed tables of ranks and of windows merge."""
        return (Span(REST, self._merged),)

    def _merged(self, own: Tensor, among: TableIndex) -> Merging:
        """The merge of packed tables.

        Extremes and histograms are those of all values. A moving average becomes the mean of the averages of the tables that have
        one: that of the mean extremes, if each rank called the site equally often.
        """
        counters, ends, histograms, channels = self._parts(own)
        low, high = (torch.cat((ends[:, side::2], channels[:, side]), 1) for side in (0, 1))
        found = yield torch.stack((-low, high))
        low, high = -found[0], found[1]
        joint = torch.stack((low, high), -1)[:, :2]  # seen and average
        if histograms.shape[1]:
            lines = zip(histograms.float(), ends[:, _SEEN].float(), joint[:, 0].float(), strict=True)
            histograms = torch.stack([moved(*line) for line in lines])
        average = ends[:, _AVERAGE]
        called = torch.isfinite(average)
        known = yield torch.cat((counters, torch.where(called, average, 0), called, histograms), 1)
        yield own.new_empty(0)
        counters, summed, tables, histograms = torch.split(known, [_COUNTERS, 2, 2, histograms.shape[1]], 1)
        joint[:, 1] = torch.where(tables > 0, summed / tables.clamp(min=1), joint[:, 1])
        extremes = torch.stack((low, high), 1)[..., 2:]
        return torch.cat([part.flatten() for part in (counters, joint, histograms, extremes)])

    def _parts(self, packed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sites = len(self.names)
        sizes = [sites * _COUNTERS, sites * 4, self.histograms.numel()]
        counters, ends, histograms, channels = torch.split(packed, [*sizes, packed.shape[0] - sum(sizes)])
        shaped = counters.view(sites, -1), ends.view(sites, -1), histograms.view(sites, -1)
        return *shaped, channels.view(sites, 2, channels.shape[0] // (2 * sites))

    def read(
        self, packed: Tensor, dtype: str = "int8", scheme: str = "affine"
    ) -> tuple[dict[str, ActivationRange], tuple[str, ...]]:
        """Return the ranges of a table of :meth:`pack` or of a merge, on the host, and the names of the sites that were not called.

        A range is NaN, with scale 1, where no value was finite.
        """
        counters, *others = self._parts(packed)
        sites: dict[str, ActivationRange] = {}
        for name, (calls, count, nonfinite), *of_site in zip(self.names, counters.tolist(), *others, strict=True):
            ends, histogram, channels = (part.float() for part in of_site)
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
                    channels=_channel_ranges(channels, dtype, scheme),
                )
        return sites, tuple(name for name in self.names if name not in sites)

    def _range(self, ends: Tensor, histogram: Tensor) -> tuple[Tensor, Tensor]:
        if self.method == "histogram":
            return least_error_range(histogram, ends[_SEEN])
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


def check_range_options(method: object, averaging_constant: object, bins: object, percentile: object, channel_dim: object) -> None:
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
    check_optional_integer("channel_dim", channel_dim, "the dimension of the channels")
    if channel_dim is not None and method != "minmax":
        raise ValueError(f"channel_dim goes with method='minmax' only; got channel_dim={channel_dim!r} and method={method!r}.")


def _channel_ranges(extremes: Tensor, dtype: str, scheme: str) -> tuple[ChannelRange, ...]:
    found = extremes[0] <= extremes[1]
    if not found.any():
        return ()
    width = int(found.nonzero()[-1]) + 1  # the rest is unused capacity
    found, extremes = found[:width], extremes[:, :width]
    known = torch.where(found, extremes, 0.0)
    scales, zero_points = quantization_parameters(known[0], known[1], dtype, scheme)
    columns = zip(found.tolist(), *extremes.tolist(), scales.tolist(), zero_points.tolist(), strict=True)
    return tuple(ChannelRange(*numbers) if there else ChannelRange(math.nan, math.nan, 1.0, 0) for there, *numbers in columns)
