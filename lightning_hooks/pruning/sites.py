"""The masks and the activity of the units of selected modules."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Gate, Listener
from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.pruning.report import PrunedUnits, PruningReport
from lightning_hooks.pruning.units import Layout, activity_sums, known_units
from lightning_hooks.pruning.weights import producer_of
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import REST, Span, Spans, added, largest
from lightning_hooks.statistics.units import layouts, most_units


class UnitSite:
    """The units of one module: their activity in this epoch, and their mask.

    Args:
        name: The name of the module.
        layout: The layout of its units.
        units: Their number; None if it is unknown.
    """

    def __init__(self, name: str, layout: Layout, units: int | None) -> None:
        self.name, self.layout, self.units = name, layout, units
        self.sums: Tensor | None = None  # of |value| over the epoch, (units,), on the device
        self.count = 0  # number of values of each unit in sums
        self.dropped: Tensor | None = None  # (units,), on the device; None while nothing is masked
        self.kept: Tensor | None = None  # the negation, on the host; None before the first decision

    def check(self, output: Any) -> Tensor:
        """Return the output if its units can be masked.

        Raises:
            TypeError: If it is not one floating-point tensor.
        """
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() == 0:
            kind = f"a {output.dtype} tensor" if isinstance(output, Tensor) else type(output).__name__
            raise TypeError(
                f"ActivationPruner masks the units of modules that return one floating-point tensor; {self.name!r} returned "
                f"{kind}. Choose other modules with modules=, for instance the layers inside it."
            )
        return output

    def settle(self, units: int) -> None:
        """Set the number of units, from an output.

        Raises:
            RuntimeError: If it was different before.
        """
        if self.units is None:
            self.units = units
        known = [self.units] if self.kept is None else [self.units, len(self.kept)]
        other = next((number for number in known if number != units), None)
        if other is not None:
            raise RuntimeError(
                f"{self.name!r} returned {units} units, and {other} before (or in the checkpoint). ActivationPruner needs modules "
                "with a constant number of units; pass unit_dim= if it used the wrong dimension."
            )

    def mask(self, kept: Tensor, device: torch.device) -> None:
        """Mask the units that are False in ``kept``, ``(units,)``, on the host."""
        self.kept = kept
        self.dropped = None if bool(kept.all()) else (~kept).to(device, non_blocking=True)


class MaskListener(Listener):
    """Forward hook of one site: measures the output before the mask, and returns it with masked units at zero.

    Args:
        site: The site.
        gate: The hook measures while it is open.
        training_only: Whether to measure only in training mode.
    """

    def __init__(self, site: UnitSite, gate: Gate, training_only: bool) -> None:
        self.site, self.gate, self.training_only = site, gate, training_only

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
        """Return the masked output, or None for no change."""
        site = self.site
        measures = self.gate.open and (in_training_mode(module) or not self.training_only)
        if not measures and site.dropped is None:
            return None
        values = site.check(output)
        dim = site.layout.dim(values)
        site.settle(values.shape[dim])
        if measures:
            sums, count = activity_sums(values, dim)
            if site.sums is None:
                site.sums = torch.zeros(sums.shape, dtype=row_dtype(sums.device), device=sums.device)
            site.sums += sums
            site.count += count
        if site.dropped is None:
            return None
        shape = [1] * values.dim()
        shape[dim] = -1
        return values.masked_fill(site.dropped.to(values.device).view(shape), 0.0)


class UnitSites:
    """The sites of a model.

    Args:
        modules: (name, module) pairs in order; the modules are not kept.
        root: The model.
        unit_dim: The dimension of the units in their outputs; None to infer it from the module or the one before it.
    """

    def __init__(self, modules: Iterable[tuple[str, nn.Module]], root: nn.Module, unit_dim: int | None = None) -> None:
        named, guesses = dict(named_sites(root)), layouts(root)
        self.sites = []
        for name, module in modules:
            producer = producer_of(name, named)
            maker = module if producer is None else named[producer]
            if unit_dim is None:
                self.sites.append(UnitSite(name, Layout.of(maker, guesses.get(id(module))), known_units(maker)))
            else:
                self.sites.append(UnitSite(name, Layout(given=unit_dim), None))
        self.device = next((parameter.device for parameter in root.parameters()), torch.device("cpu"))
        # If the number of units of a site is unknown, every rank reserves as many as the widest layer has: the site may be called
        # on one rank only.
        self._most = most_units(root)
        self._room = [site.units for site in self.sites]

    def pack(self, fixed: bool) -> Tensor:
        """Return the epoch's activity as one vector: number of units, number of values per unit, and sums, of each site.

        Args:
            fixed: Whether to reserve the same length for each site on every rank.

        Raises:
            RuntimeError: If ``fixed``, and a site has more units than any layer with parameters.
        """
        sums = []
        for site, room in zip(self.sites, self._room, strict=True):
            found = site.sums if site.sums is not None else torch.zeros(0, dtype=row_dtype(self.device), device=self.device)
            width = self._most if room is None else room
            if fixed and len(found) > width:
                raise RuntimeError(
                    f"{site.name!r} has {len(found)} units, more than any layer of the model with parameters ({self._most}), "
                    "which is the limit with several ranks. Select the layer before it with modules=."
                )
            sums.append(torch.cat((found, found.new_zeros(width - len(found)))) if fixed else found)
        known = [len(site.sums) if site.sums is not None else 0 for site in self.sites]
        counts = [site.count for site in self.sites]
        head = torch.tensor([*known, *counts], dtype=row_dtype(self.device)).to(self.device, non_blocking=True)
        return torch.cat([head, *sums])

    @property
    def spans(self) -> Spans:
        """How the packed vectors of all ranks merge."""
        return Span(len(self.sites), largest), Span(REST, added)

    def read(self, packed: Tensor, fixed: bool) -> dict[str, Activity]:
        """Return the activity of the sites that were called on any rank, from a vector on the host."""
        n = len(self.sites)
        known, counts = packed[:n].long().tolist(), packed[n : 2 * n].long().tolist()
        found: dict[str, Activity] = {}
        start = 2 * n
        for site, room, units, count in zip(self.sites, self._room, known, counts, strict=True):
            width = (self._most if room is None else room) if fixed else units
            if count:
                found[site.name] = Activity(packed[start : start + units].clone(), count)
            start += width
        return found

    def restore(self, found: Mapping[str, Activity]) -> None:
        """Continue from the activity of an interrupted epoch."""
        for site in self.sites:
            activity = found.get(site.name)
            if activity is not None:
                site.sums, site.count = activity.sums.to(self.device, row_dtype(self.device)), activity.count

    def reset(self) -> None:
        """Start a new epoch."""
        for site in self.sites:
            site.sums, site.count = None, 0

    def decide(self, found: Mapping[str, Activity], target: float, regrow: bool) -> dict[str, PrunedUnits]:
        """Make new masks: of each site, the ``target`` share of its units with the lowest activity.

        Units are sorted by mean activity, then by index, so that every rank makes the same masks. At least one unit stays. A unit
        with nonfinite activity is never masked: that would hide a fault. A site that was not called keeps its mask.

        Args:
            found: The activity of the sites.
            target: The share to mask, 0 to 1.
            regrow: Whether masked units may become active again; else they stay masked.

        Returns:
            The units of the sites that have a mask.
        """
        for site in self.sites:
            activity = found.get(site.name)
            if activity is None:
                continue
            means = activity.means()
            held = torch.zeros(len(means), dtype=torch.bool) if site.kept is None or regrow else ~site.kept
            number = max(min(round(target * len(means)), len(means) - 1), int(held.sum()))
            order = sorted(range(len(means)), key=lambda unit: (not held[unit], means[unit]))
            kept = torch.ones(len(means), dtype=torch.bool)
            kept[[unit for unit in order[:number] if held[unit] or math.isfinite(means[unit])]] = False
            site.mask(kept, self.device)
        return {site.name: _units_of(site, found.get(site.name)) for site in self.sites if site.kept is not None}


@dataclass(frozen=True, slots=True)
class Activity:
    """The activity of the units of a site in an epoch.

    Attributes:
        sums: Sum of |value| of each unit, ``(units,)``, on the host.
        count: Number of values per unit.
    """

    sums: Tensor
    count: int

    def means(self) -> list[float]:
        """Mean |value| of each unit; infinite where it is not finite."""
        means: list[float] = (self.sums.double() / self.count).nan_to_num(nan=math.inf, posinf=math.inf).tolist()
        return means


def _units_of(site: UnitSite, activity: Activity | None) -> PrunedUnits:
    assert site.kept is not None
    kept = site.kept.tolist()
    means = activity.means() if activity else []
    masked = [mean for mean, stays in zip(means, kept, strict=False) if not stays]
    staying = [mean for mean, stays in zip(means, kept, strict=False) if stays]
    return PrunedUnits(
        units=len(kept),
        masked=kept.count(False),
        sparsity=kept.count(False) / len(kept),
        threshold=max(masked, default=math.nan),
        activity=sum(staying) / len(staying) if staying else math.nan,
    )


def overall(sites: Mapping[str, PrunedUnits]) -> float:
    """Return the masked share of all units; 0 without units."""
    units = sum(entry.units for entry in sites.values())
    return sum(entry.masked for entry in sites.values()) / units if units else 0.0


def report_of(sites: UnitSites, found: Mapping[str, Activity], target: float, regrow: bool, epoch: int, step: int) -> PruningReport:
    """Make new masks, and return their report."""
    pruned = sites.decide(found, target, regrow)
    silent = tuple(site.name for site in sites.sites if site.name not in found)
    return PruningReport(epoch, step, target, overall(pruned), pruned, silent)
