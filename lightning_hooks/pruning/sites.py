"""The masks and the activity of the units of selected modules, and their hooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.extraction import to_host
from lightning_hooks.extraction.extracted import gather
from lightning_hooks.hooks import Gate, HookManager, Listener, ModuleSelector, select_modules
from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.selection import compiled_around, compiled_regions, named_sites
from lightning_hooks.pruning.report import PrunedUnits
from lightning_hooks.pruning.weights import Layout, activity_sums, known_units, producer_of
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.units import layouts


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

    def merged(self) -> dict[str, Activity]:
        """Return the epoch's activity of all ranks, on the host, of the sites that were called on any: a collective."""
        sums = to_host({site.name: site.sums for site in self.sites if site.sums is not None})
        ranks = gather({site.name: Activity(sums[site.name], site.count) for site in self.sites if site.name in sums})
        parts = {site.name: [rank[site.name] for rank in ranks if site.name in rank] for site in self.sites}
        return {
            name: Activity(torch.stack([part.sums for part in found]).sum(0), sum(part.count for part in found))
            for name, found in parts.items()
            if found
        }

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


def install_masks(
    model: nn.Module,
    modules: ModuleSelector,
    unit_dim: int | None,
    masks: Mapping[str, Tensor],
    hooks: HookManager,
    gate: Gate,
    training_only: bool,
) -> UnitSites:
    """Hook the selected modules, and apply existing masks.

    Args:
        model: The model.
        modules: The selector.
        unit_dim: The dimension of the units in the outputs; None to infer it.
        masks: Module name to the units that stay, boolean, ``(units,)``.
        hooks: Where to register the hooks.
        gate: While it is open, the hooks measure.
        training_only: Whether to measure only in training mode.

    Returns:
        The sites of the selected modules.

    Raises:
        RuntimeError: If a selected module runs under ``torch.compile``.
        ValueError: If a module with a mask is not selected.
    """
    chosen, regions = select_modules(model, modules), compiled_regions(model)
    compiled = [name for name, _ in chosen if compiled_around(name, regions) is not None]
    if compiled:
        raise RuntimeError(
            f"{compiled[0]!r} runs under torch.compile, and a compiled graph does not run later masks. Train "
            "uncompiled with the pruner; then call apply(model), and compile."
        )
    sites = UnitSites(chosen, model, unit_dim)
    unknown = sorted(set(masks) - {site.name for site in sites.sites})
    if unknown:
        raise ValueError(
            f"There is a mask for {unknown[0]!r}, which modules={modules!r} does not select in {type(model).__name__}. "
            "Continue with the same model and modules as before, or start with a new ActivationPruner."
        )
    for site in sites.sites:
        if site.name in masks:
            if site.units is not None:
                site.kept = masks[site.name]
                site.settle(site.units)
            site.mask(masks[site.name], sites.device)
    with hooks.all_or_nothing():
        for site, (name, module) in zip(sites.sites, chosen, strict=True):
            hooks.register(module, MaskListener(site, gate, training_only), "forward", label=name)
    return sites
