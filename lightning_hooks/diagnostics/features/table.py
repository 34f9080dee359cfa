"""The table of feature rows, with the units of its rectifiers, as one tensor to be merged over ranks; what its numbers are."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from lightning_hooks.diagnostics.features.activations import Saturation, is_rectifier, saturation_of
from lightning_hooks.hooks.tensors import float_tensors, plain_values
from lightning_hooks.statistics.histograms import HistogramTable
from lightning_hooks.statistics.kernels import Bounds, Units, kernels_for
from lightning_hooks.statistics.reduction import REST, Merging, Span, TableIndex, flagged
from lightning_hooks.statistics.rows import N_COLUMNS, Clock, Column, empty_table
from lightning_hooks.statistics.tables import FirstCalls
from lightning_hooks.statistics.units import features_last, layouts, unit_dimension, units_of


@dataclass(frozen=True, slots=True)
class FeatureStats:
    """What a module put out over the sampled batches of an epoch, all ranks pooled.

    Mean, std, min, max and rms are over finite values, and NaN where there were none.

    Attributes:
        calls: How often the module was called.
        count: Finite values.
        mean: Their mean.
        std: Their population standard deviation.
        min: The smallest.
        max: The largest.
        rms: Root mean square.
        zero_fraction: Share of all values that are exactly 0, in [0, 1].
        nonfinite_fraction: Share of all values that are NaN or infinite, in [0, 1].
        dead_fraction: Share of the units that never fired, in [0, 1]; None unless the module is a rectifier.
        saturated_fraction: Share of values (softmax: of distributions) at a bound, in [0, 1]; None unless bounded.
        first_nonfinite_batch: The first sampled training batch of the epoch (``batch_idx``) that gave a NaN or infinite value,
            on any rank; None if all were finite.
        unit_samples: Finite values seen of each of a rectifier's units; None unless the module is a rectifier.
    """

    calls: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    rms: float
    zero_fraction: float
    nonfinite_fraction: float
    dead_fraction: float | None = None
    saturated_fraction: float | None = None
    first_nonfinite_batch: int | None = None
    unit_samples: int | None = None

    @property
    def units(self) -> float:
        """How many units a rectifier has; infinite for what is none, and where none was seen."""
        return self.count / self.unit_samples if self.unit_samples else math.inf

    @property
    def spread(self) -> float:
        """Standard deviation over root mean square; 0 where all values are 0."""
        return self.std / self.rms if self.rms > 0 else 0.0


def feature_stats(
    row: Sequence[float], dead_fraction: float | None = None, bounded: bool = False, masks: bool = False
) -> FeatureStats:
    """Name the numbers of a row of a feature table; ``bounded``: the site's activation has bounds.

    With ``masks`` zeros are those of masked inputs, which are not saturated; where nothing else is there, all is.
    """
    saturated, saturable = row[Column.SATURATED], row[Column.SATURABLE]
    if masks and row[Column.ZEROS] < saturable:
        saturated, saturable = saturated - row[Column.ZEROS], saturable - row[Column.ZEROS]
    return FeatureStats(
        calls=int(row[Column.CALLS]),
        count=int(row[Column.COUNT]),
        dead_fraction=dead_fraction,
        saturated_fraction=(saturated / saturable if saturable else math.nan) if bounded else None,
        first_nonfinite_batch=first_nonfinite(row[Column.FIRST_NONFINITE]),
        unit_samples=None if dead_fraction is None else int(row[Column.COUNT] / row[Column.UNITS]),
        **pooled_stats(row),
    )


def first_nonfinite(index: float) -> int | None:
    """The index of a batch or step, or None for +inf."""
    return None if math.isinf(index) else int(index)


def pooled_stats(row: Sequence[float]) -> dict[str, float]:
    """The numbers that features and gradients share, by name."""
    count, mean = row[Column.COUNT], row[Column.MEAN]
    seen = count + row[Column.NONFINITE]
    variance = row[Column.M2] / count if count else math.nan
    return {
        "mean": mean if count else math.nan,
        "std": math.sqrt(variance) if count else math.nan,
        "min": row[Column.MIN] if count else math.nan,
        "max": row[Column.MAX] if count else math.nan,
        "rms": math.sqrt(variance + mean * mean) if count else math.nan,
        "zero_fraction": row[Column.ZEROS] / seen if seen else math.nan,
        "nonfinite_fraction": row[Column.NONFINITE] / seen if seen else math.nan,
    }


class FeatureTable:
    """Rows of all sites on the device, and for each rectifier which of its units have fired.

    The units of a rectifier are known only when it is first called, and on another rank perhaps never; for the merge over ranks
    each rectifier gets the same number of bytes, ``capacity``, which every rank derives from the model alone. ``spare`` lines are
    for sites that are only known when they are first called: :meth:`add_site`.
    """

    def __init__(
        self, sites: list[tuple[str, nn.Module]], root: nn.Module, device: torch.device | str = "cpu", spare: int = 0
    ) -> None:
        self.named = {index: name for index, (name, _) in enumerate(sites)}
        self.n_modules = len(sites)
        self.rows = empty_table(len(sites) + spare, device)
        self.spans = Span(self.rows.numel(), Column.merge()), Span(REST, _fired_anywhere)
        self._kernels = kernels_for(self.rows.device.type)
        self.clock = Clock(device)
        self.order = FirstCalls()  # sites, as they were first called
        self.unmeasured: set[str] = set()  # sites that were called in this epoch, on this rank, and put out no number
        layout = layouts(root)
        self.saturation = {index: spec for index, (_, module) in enumerate(sites) if (spec := saturation_of(module)) is not None}
        # Site -> are its units last, by the order of the model?
        self.rectifiers = {index: layout.get(id(module)) for index, (_, module) in enumerate(sites) if is_rectifier(module)}
        # Site -> does it put units last?
        self.producers = {index: last for index, (_, module) in enumerate(sites) if (last := features_last(module)) is not None}
        self._before: bool | None = None  # what the last producer called does
        self.fired: dict[int, Tensor] = {}
        self._all_fired: set[int] = set()  # rectifiers whose units have all fired in this epoch, as far as the host knows
        self.histograms: HistogramTable | None = None
        self.reserved: int | None = None  # bytes per rectifier in a packed table; None for as many as this process needs
        self._widths = {units_of(module) for module in root.modules()}
        self.capacity = max(self._widths)  # the same number on every rank

    @property
    def names(self) -> list[str]:
        """The sites known by now."""
        return list(self.named.values())

    def add_site(self, index: int, name: str, rectifies: bool, saturation: Saturation | None) -> None:
        """Use a spare line for a site, whose units may give exactly zero, and which may have bounds."""
        self.named[index] = name
        if rectifies:
            self.rectifiers[index] = None
        if saturation is not None:
            self.saturation[index] = saturation

    def drop_spare(self) -> None:
        """Forget the sites of the spare lines, and their numbers."""
        self.rows[self.n_modules :].copy_(empty_table(len(self.rows) - self.n_modules, self.rows.device))
        self.order.load([index for index in self.order if index < self.n_modules])
        tables: tuple[dict[int, Any], ...] = (self.named, self.rectifiers, self.saturation, self.fired)
        for table in tables:
            for index in [index for index in table if index >= self.n_modules]:
                del table[index]

    def add(self, index: int, args: tuple[Any, ...], output: Any) -> None:
        """Record one call's output at site ``index``. No host sync; no tensor is kept."""
        self.order.called.append(index)
        self._before = self.producers.get(index, self._before)
        known = type(output) is Tensor and output.layout is torch.strided and output.is_floating_point() and not output.is_nested
        found = [output] if known and self._kernels.proves else [plain_values(tensor) for tensor in float_tensors(output)]
        if not found:
            self.unmeasured.add(self.named[index])
        saturation, rectifies, new_call = self.saturation.get(index), index in self.rectifiers, True
        for values in found:
            if self.histograms is not None:
                self.histograms.add(index, plain_values(values))
            bounds = units = None
            if (rectifies or saturation is not None) and values.numel():
                bounds = None if saturation is None else self._bounds(saturation, values, args)
                units = self._units(index, values) if rectifies else None
            complete = self._kernels.record(self.rows, index, values, self.clock, new_call, bounds, units)
            new_call = False
            if complete and units is not None and units.n == len(self.fired[index]):
                self._all_fired.add(index)

    def _bounds(self, saturation: Saturation, values: Tensor, args: tuple[Any, ...]) -> Bounds | None:
        if saturation.reads == "output":
            return saturation.bounds(values)
        read = float_tensors(args[0] if args else None) or float_tensors(args)
        return saturation.bounds(plain_values(read[0])) if read else None

    def reads_input(self, index: int) -> bool:
        """Whether :meth:`add` reads the input of the module at site ``index``."""
        spec = self.saturation.get(index)
        return spec is not None and spec.reads == "input"

    def _units(self, index: int, values: Tensor) -> Units | None:
        dims = values.dim()
        # The order of calls knows best; the order of definition is a guess that four dimensions do not need.
        last = self._before if self._before is not None else self.rectifiers[index] if dims < 4 else None
        dim = unit_dimension(dims, last)
        n = values.shape[dim] if dims else 1
        if index >= self.n_modules and (dims < 2 or n not in self._widths):
            return None  # not of a layer's units: the hinge of a loss, for instance
        known = self.fired.get(index)
        if known is None or known.shape[0] < n:
            known = self._known(index, n, values.device)
        return Units(n, dim, None if index in self._all_fired else known[:n])

    def _known(self, index: int, units: int, device: torch.device) -> Tensor:
        """Which units of a rectifier fired before, for at least ``units`` of them."""
        known = self.fired.get(index)
        if known is None or known.shape[0] < units:  # one rectifier may be used at several widths
            with torch.inference_mode(False):  # under the user's it could not be written into later
                grown = torch.zeros(units, dtype=torch.bool, device=device)
            if known is not None:
                grown[: known.shape[0]] = known
            known = self.fired[index] = grown
            self._all_fired.discard(index)
        return known

    def pack(self) -> Tensor:
        """Return everything as one vector, of the dtype and device of the rows; of one length on ranks that reserve as much."""
        needed = max((len(fired) for fired in self.fired.values()), default=0) if self.reserved is None else self.reserved
        width = -(-needed // 8) * 8  # whole float64s
        widest = torch.zeros(width, dtype=torch.bool, device=self.rows.device)
        fired = [self.fired.get(index, widest)[:width].to(self.rows.device, non_blocking=True) for index in self.rectifiers]
        units = pad_sequence([widest, *fired], batch_first=True)[1:].to(torch.uint8)
        return torch.cat((self.rows.flatten(), units.flatten().view(self.rows.dtype)))

    def unpack(self, packed: Tensor) -> None:
        """Load a vector that :meth:`pack` or a merge gave."""
        split = self.rows.numel()
        self.rows.copy_(packed[:split].view_as(self.rows))
        if self.rectifiers:
            units = packed[split:].contiguous().view(torch.uint8).view(len(self.rectifiers), -1).bool()
            for line, index in enumerate(self.rectifiers):
                n_units = int(self.rows[index, Column.UNITS])
                if n_units:
                    fired = units[line, :n_units].to(self.rows.device)
                    self._known(index, n_units, fired.device)[: fired.shape[0]].logical_or_(fired)

    def widened(self, packed: Tensor, size: int, rectifiers: int) -> Tensor:
        """A packed table with room for more rectifiers, and more units of each."""
        n_rows = self.rows.numel()
        if packed.shape[0] == size or not self.rectifiers:
            return packed
        rows, units = torch.split(packed, [n_rows, packed.shape[0] - n_rows])
        wider = units.new_zeros((len(self.rectifiers), (size - n_rows) // len(self.rectifiers)))
        if rectifiers:
            old = units.view(rectifiers, -1)
            wider[:rectifiers, : old.shape[1]] = old
        return torch.cat((rows, wider.flatten()))

    def read(self, packed: Tensor) -> tuple[dict[str, FeatureStats], tuple[str, ...]]:
        """Name the numbers of a packed table on the host.

        Returns:
            The statistics of the sites that were called, and the names of the modules that were not.
        """
        split = self.rows.numel()
        rows = packed[:split].view(-1, N_COLUMNS).tolist()
        units = packed[split:].view(torch.uint8).view(len(self.rectifiers), -1).numpy() if self.rectifiers else None
        lines = {index: line for line, index in enumerate(self.rectifiers)}
        sites: dict[str, FeatureStats] = {}
        called = {index: name for index, name in self.named.items() if rows[index][Column.CALLS]}
        for index, name in called.items():
            row = rows[index]
            dead = None
            n_units = int(row[Column.UNITS])
            if units is not None and 0 < n_units <= units.shape[1]:
                dead = 1.0 - int(units[lines[index], :n_units].sum()) / n_units
            spec = self.saturation.get(index)
            sites[name] = feature_stats(row, dead, bounded=spec is not None, masks=spec is not None and spec.masks)
        return sites, tuple(name for index, name in self.named.items() if index < self.n_modules and index not in called)

    def reset(self) -> None:
        """Start a new epoch."""
        self.rows.copy_(empty_table(len(self.rows), self.rows.device))
        self._all_fired.clear()
        self.unmeasured.clear()
        for fired in self.fired.values():
            fired.zero_()

    def called(self, order: Iterable[int]) -> tuple[str, ...]:
        """Name the sites in the order of their first call, on whichever rank."""
        return tuple(dict.fromkeys((*(self.named[index] for index in order), *self.names)))


def _fired_anywhere(own: Tensor, among: TableIndex) -> Merging:
    """The units that have fired in any table: a byte each, eight of them in the place of a number."""
    found = yield from flagged(own.contiguous().view(torch.uint8).to(own.dtype), among)
    return found.to(torch.uint8).view(own.dtype)
