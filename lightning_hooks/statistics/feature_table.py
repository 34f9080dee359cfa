"""The table of feature rows, with the units of its rectifiers, as one tensor to be merged over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks.tensors import float_tensors, plain_values
from lightning_hooks.statistics.feature_stats import FeatureStats, feature_stats
from lightning_hooks.statistics.fused import fused
from lightning_hooks.statistics.histograms import HistogramTable
from lightning_hooks.statistics.native import native
from lightning_hooks.statistics.rows import N_COLUMNS, Clock, Column, empty_table, merge
from lightning_hooks.statistics.summarize import accumulate
from lightning_hooks.statistics.units import (
    Saturation,
    features_last,
    fired_on_host,
    fired_units,
    is_rectifier,
    saturation_of,
    unit_dimension,
)


class FeatureTable:
    """Rows of all sites on the device, and for each rectifier which of its units have fired.

    The units of a rectifier are known only when it is first called, and on another rank perhaps never; for the merge over ranks
    each rectifier gets the same number of bytes, ``capacity``, which every rank derives from the model alone.

    Args:
        sites: (name, module) of each site, in order. The modules are looked at and not kept.
        root: The model they are from.
        device: Where the rows live.
    """

    def __init__(self, sites: list[tuple[str, nn.Module]], root: nn.Module, device: torch.device | str = "cpu") -> None:
        self.names = [name for name, _ in sites]
        self.rows = empty_table(len(sites), device)
        self.clock = Clock(device)
        self.order: dict[int, None] = {}  # sites, as they were first called
        self.unmeasured: set[str] = set()  # sites that were called in this epoch, on this rank, and put out no number
        self.saturation: dict[int, Saturation] = {}
        self.rectifiers: dict[int, bool | None] = {}  # site -> does the model's order say its units are last?
        self.producers: dict[int, bool] = {}  # site -> does it put units last?
        self._before: bool | None = None  # what the last producer called does
        self.fired: dict[int, Tensor] = {}
        self._asleep: dict[int, int] = {}  # site -> how many units have not fired, where that is known on the host
        self.histograms: HistogramTable | None = None
        self.capacity = most_units(root)
        layout = layouts(root)
        for index, (_, module) in enumerate(sites):
            if is_rectifier(module):
                self.rectifiers[index] = layout.get(id(module))
            said = features_last(module)
            if said is not None:
                self.producers[index] = said
            spec = saturation_of(module)
            if spec is not None:
                self.saturation[index] = spec

    def add(self, index: int, args: tuple[Any, ...], output: Any) -> None:
        """Take up one call's output at site ``index``. No host sync; no tensor is kept."""
        self.order.setdefault(index)
        self._before = self.producers.get(index, self._before)
        spec, rectifies = self.saturation.get(index), index in self.rectifiers
        found, readable = _values_in(output)
        if not found:
            self.unmeasured.add(self.names[index])
        for position, values in enumerate(found):
            if self.histograms is not None:
                self.histograms.add(index, values)
            if values.is_cuda and self._add_fused(index, values, position == 0):
                continue
            saturated = None
            if spec is not None and values.numel():
                read = values if spec.reads == "output" else _first_float(args)
                saturated = None if read is None else spec.count(read)
            units = 0
            if rectifies and values.numel():
                units = self._look_for_units(index, values, self._units_last(index, values))
            accumulate(self.rows, index, values, self.clock, saturated, units, position == 0, False, readable)

    def reads_input(self, index: int) -> bool:
        """Whether :meth:`add` reads the input of the module at site ``index``."""
        spec = self.saturation.get(index)
        return spec is not None and spec.reads == "input"

    def _units_last(self, index: int, values: Tensor) -> bool | None:
        # The order of calls knows best; the order of definition is a guess that four dimensions do not need.
        if self._before is not None:
            return self._before
        return self.rectifiers[index] if values.dim() < 4 else None

    def _add_fused(self, index: int, values: Tensor, new_call: bool) -> bool:
        """Take up a CUDA tensor in one read, with its units and bounds; whether that could be done."""
        spec, kernels = self.saturation.get(index), fused()
        if kernels is None or not self.rows.is_cuda or not values.numel() or (spec is not None and spec.reads == "input"):
            return False
        known, unit_dim = None, 0
        if index in self.rectifiers:
            unit_dim = unit_dimension(values, self._units_last(index, values))
            if not values.is_contiguous():
                values, unit_dim = values.movedim(unit_dim, -1), values.dim() - 1  # channels_last
            if not values.is_contiguous():
                return False
            units = values.shape[unit_dim] if values.dim() else 1
            known = self._known(index, units, values.device)[:units]
        if not kernels.readable(values):
            return False
        bounds = {} if spec is None else {"low": spec.low, "high": spec.high, "saturable": spec.total(values)}
        kernels.accumulate(
            self.rows,
            index,
            values,
            self.clock,
            int(new_call),
            known=known,
            unit_dim=unit_dim,
            **bounds,  # type: ignore[arg-type]
        )
        return True

    def _look_for_units(self, index: int, values: Tensor, units_last: bool | None) -> int:
        """Note which units of a rectifier fired in ``values``; return how many it has there."""
        units = values.shape[unit_dimension(values, units_last)] if values.dim() else 1
        known = self._known(index, units, values.device)
        if self._asleep.get(index) != 0:  # once all have fired there is nothing left to find in this epoch
            asleep = fired_on_host(values, units_last, known if known.shape[0] == units else known[:units])
            if asleep is None:
                known[:units].logical_or_(fired_units(values, units_last))
            elif units == known.shape[0]:
                self._asleep[index] = asleep
        return units

    def _known(self, index: int, units: int, device: torch.device) -> Tensor:
        """Which units of a rectifier fired before, for at least ``units`` of them."""
        known = self.fired.get(index)
        if known is None or known.shape[0] < units:  # one rectifier may be used at several widths
            grown = torch.zeros(units, dtype=torch.bool, device=device)
            if known is not None:
                grown[: known.shape[0]] = known
            known = self.fired[index] = grown
            self._asleep.pop(index, None)
        return known

    def pack(self, capacity: int | None = None) -> Tensor:
        """Return everything as one vector, of the same length on every rank if ``capacity`` is the same.

        Args:
            capacity: Bytes per rectifier; None for as many as this process needs.

        Returns:
            One-dimensional, of the dtype and device of the rows.
        """
        width = self._width(capacity)
        units = torch.zeros((len(self.rectifiers), width), dtype=torch.uint8, device=self.rows.device)
        for line, index in enumerate(self.rectifiers):
            known = self.fired.get(index)
            if known is not None:
                kept = known[:width].to(self.rows.device, torch.uint8, non_blocking=True)
                units[line, : kept.shape[0]] = kept
        return torch.cat((self.rows.flatten(), units.flatten().view(self.rows.dtype)))

    def _width(self, capacity: int | None) -> int:
        needed = capacity if capacity is not None else max((len(fired) for fired in self.fired.values()), default=0)
        return -(-needed // 8) * 8  # whole float64s

    def unpack(self, packed: Tensor) -> None:
        """Take up a vector that :meth:`pack` or :meth:`merge_packed` gave."""
        split = self.rows.numel()
        self.rows.copy_(packed[:split].view_as(self.rows))
        if self.rectifiers:
            units = packed[split:].contiguous().view(torch.uint8).view(len(self.rectifiers), -1).bool()
            for line, index in enumerate(self.rectifiers):
                n_units = int(self.rows[index, Column.UNITS])
                if n_units:
                    fired = units[line, :n_units].to(self.rows.device)
                    self._known(index, n_units, fired.device)[: fired.shape[0]].logical_or_(fired)

    def merge_packed(self, packed: Tensor) -> Tensor:
        """Merge the packed tables of several ranks, shape ``(world, m)``, into one of shape ``(m,)``."""
        split = self.rows.numel()
        rows = merge(packed[:, :split].reshape(-1, *self.rows.shape))
        units = packed[:, split:].contiguous().view(torch.uint8).amax(0) if packed.shape[1] > split else None
        return torch.cat((rows.flatten(), *([] if units is None else [units.view(rows.dtype)])))

    def read(self, packed: Tensor) -> tuple[dict[str, FeatureStats], tuple[str, ...]]:
        """Name the numbers of a packed table on the host.

        Returns:
            The statistics of the sites that were called, and the names of those that were not.
        """
        split = self.rows.numel()
        rows = packed[:split].view(-1, N_COLUMNS).tolist()
        units = packed[split:].view(torch.uint8).view(len(self.rectifiers), -1) if self.rectifiers else None
        lines = {index: line for line, index in enumerate(self.rectifiers)}
        sites: dict[str, FeatureStats] = {}
        silent: list[str] = []
        for index, (name, row) in enumerate(zip(self.names, rows, strict=True)):
            if not row[Column.CALLS]:
                silent.append(name)
                continue
            dead = None
            n_units = int(row[Column.UNITS])
            if units is not None and 0 < n_units <= units.shape[1]:
                dead = 1.0 - int(units[lines[index], :n_units].sum()) / n_units
            sites[name] = feature_stats(row, dead, bounded=index in self.saturation)
        return sites, tuple(silent)

    def reset(self) -> None:
        """Start a new epoch."""
        self.rows.copy_(empty_table(len(self.names), self.rows.device))
        if self.histograms is not None:
            self.histograms.reset()
        self._asleep.clear()
        self.unmeasured.clear()
        for fired in self.fired.values():
            fired.zero_()

    def called(self, order: Iterable[int]) -> tuple[str, ...]:
        """Name the sites in the order of their first call.

        Args:
            order: The sites that were called, first called first, on whichever rank.
        """
        known = {self.names[index]: None for index in order}
        return (*known, *(name for name in self.names if name not in known))


def layouts(root: nn.Module) -> Mapping[int, bool | None]:
    """For each module, by id, whether the layer before it (in the model's order) puts its units last."""
    found: dict[int, bool | None] = {}
    last: bool | None = None
    for module in root.modules():
        found[id(module)] = last
        said = features_last(module)
        last = last if said is None else said
    return found


def most_units(root: nn.Module) -> int:
    """The most units any module of a model can have, as far as its parameters tell: the same number on every rank."""
    return max(map(_units_of, root.modules()), default=0)


def _units_of(module: nn.Module) -> int:
    """The most units a rectifier after this module can have, as far as its parameters tell."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return int(module.embedding_dim)
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return int(module.out_channels)
    shapes = [p.shape for p in module.parameters(recurse=False) if not nn.parameter.is_lazy(p)]
    return max((shape[0] for shape in shapes if len(shape)), default=0)


def _values_in(output: Any) -> tuple[list[Tensor], bool]:
    """The numbers in a module's output, and whether it is one tensor that the compiled path can read as it is: most often."""
    fast = native()
    if fast is not None and fast.reads(output):
        return [output], True
    return [plain_values(tensor) for tensor in float_tensors(output)], False


def _first_float(args: tuple[Any, ...]) -> Tensor | None:
    found = _values_in(args[0] if args else None)[0] or _values_in(args)[0]
    return found[0] if found else None
