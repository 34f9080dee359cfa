"""The masks and the activity of the units of selected modules, their hooks, and the report of an epoch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.declare.plain import PlainReport
from lightning_hooks.extraction.batches import device_of, to_host
from lightning_hooks.extraction.extracted import gather_by_name
from lightning_hooks.hooks import Gate, Listener
from lightning_hooks.hooks.attributes import in_training_mode, stored
from lightning_hooks.hooks.checks import check_count
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.units import features_last, layouts, unit_dimension
from lightning_hooks.trackers import Table


def check_schedule(amount: object, start_epoch: object, end_epoch: object) -> None:
    """Raise TypeError or ValueError if an argument of :func:`target_at` is of a wrong type or out of range."""
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"amount must be a number above 0 and below 1; got {amount!r}.")
    if not 0 < amount < 1:
        raise ValueError(f"amount must be above 0 and below 1, the share of units to mask; got {amount!r}.")
    check_count("end_epoch", end_epoch, least=check_count("start_epoch", start_epoch, least=0))


def target_at(epoch: int, amount: float, start_epoch: int, end_epoch: int) -> float:
    """Return the share of units to mask at the end of an epoch, counted from 0; 0 before ``start_epoch``.

    With the progress p, from ``1 / (end_epoch - start_epoch + 1)`` at the end of ``start_epoch`` to 1 at the end of ``end_epoch``,
    it is ``amount * (1 - (1 - p) ** 3)``, which masks most units early (Zhu and Gupta 2017, "To prune, or not to prune",
    equation 1, with initial sparsity 0).
    """
    if epoch < start_epoch:
        return 0.0
    part = min(1.0, (epoch - start_epoch + 1) / (end_epoch - start_epoch + 1))
    return amount * (1.0 - (1.0 - part) ** 3)


@dataclass(frozen=True, slots=True)
class PrunedUnits:
    """The units of one module.

    Attributes:
        units: Number of units.
        masked: Number of units masked from now on.
        sparsity: Their share, 0 to 1.
        threshold: The largest activity of a masked unit in the epoch, before the mask; NaN if none is masked, or the module was not
            called.
        activity: Mean activity of the other units in the epoch; NaN if the module was not called.
    """

    units: int
    masked: int
    sparsity: float
    threshold: float
    activity: float


@dataclass(frozen=True, slots=True)
class PruningReport(PlainReport):
    """The masks made at the end of an epoch, which apply from the next.

    ``to_dict()`` gives plain JSON data, and ``from_dict()`` the report again.

    Attributes:
        epoch: The epoch whose activity was measured, from 0.
        step: The trainer's ``global_step`` at its end.
        target: The scheduled share of masked units of each module, 0 to 1.
        sparsity: The masked share of all units of all modules, 0 to 1.
        sites: Module name to its units, in model order; only modules that were called.
        silent: Selected modules that were not called in the epoch's sampled batches on any rank; they keep their masks.
    """

    epoch: int
    step: int
    target: float
    sparsity: float
    sites: dict[str, PrunedUnits]
    silent: tuple[str, ...] = ()

    def scalars(self, prefix: str) -> dict[str, float]:
        """Return the values to log by tag; NaN for a silent module."""
        of_sites = {
            f"{prefix}/{name}/{stat}": getattr(self.sites.get(name), stat, math.nan)
            for name in (*self.sites, *self.silent)
            for stat in ("sparsity", "threshold")
        }
        return {**of_sites, f"{prefix}/sparsity": self.sparsity, f"{prefix}/target": self.target}

    def summary_lines(self) -> list[str]:
        """What the terminal shows."""
        rows = [(name, site.units, site.masked, site.threshold, site.activity) for name, site in self.sites.items()]
        return [
            f"Pruning, epoch {self.epoch}: {self.sparsity:.0%} of the units are masked (target: {self.target:.0%}).",
            Table(("module", "units", "masked", "threshold", "activity of the others"), rows),
        ]


@dataclass(slots=True)
class Activity:
    """The activity of the units of a site in an epoch.

    Attributes:
        sums: Sum of |value| of each unit, ``(units,)``.
        count: Number of values per unit.
    """

    sums: Tensor
    count: int

    @property
    def means(self) -> Tensor:
        """Mean |value| of each unit, float64; infinite where it is not finite."""
        return (self.sums.double() / self.count).nan_to_num(nan=math.inf, posinf=math.inf)


class UnitSite(Listener):
    """Forward hook of one module: measures its output before the mask, and returns it with masked units at zero.

    It measures while the gate is open, and with ``training_only`` in training mode only.

    Args:
        name: The module's name.
        dim: The dimension of the units in its output; None to infer it from ``units_last``.
        units_last: Whether they are in the last dimension, or in dimension 1 (False); None if unknown.
        gate: Opened for the batches that are measured.
        training_only: Whether to measure only in training mode.
    """

    def __init__(self, name: str, dim: int | None, units_last: bool | None, gate: Gate, training_only: bool) -> None:
        self.name, self.dim, self.units_last, self.gate, self.training_only = name, dim, units_last, gate, training_only
        self.units: int | None = None  # their number, once known
        self.activity: Activity | None = None  # of this epoch, on the device
        self.dropped: Tensor | None = None  # (units,), on the device; None while nothing is masked
        self.kept: Tensor | None = None  # the negation, on the host; None before the first decision

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor | None:
        """Return the masked output, or None for no change; raise TypeError if it is not one floating-point tensor."""
        measures = self.gate.open and (in_training_mode(module) or not self.training_only)
        if not measures and self.dropped is None:
            return None
        if not isinstance(output, Tensor) or not output.is_floating_point() or output.dim() == 0:
            kind = f"a {output.dtype} tensor" if isinstance(output, Tensor) else type(output).__name__
            raise TypeError(
                f"ActivationPruner masks the units of modules that return one floating-point tensor; {self.name!r} returned "
                f"{kind}. Choose other modules with modules=, for instance the layers inside it."
            )
        dim = self._dim_in(output)
        if measures:
            sums, count = activity_sums(output, dim)
            if self.activity is None:
                self.activity = Activity(torch.zeros(sums.shape, dtype=row_dtype(sums.device), device=sums.device), 0)
            self.activity.sums += sums
            self.activity.count += count
        shape = (-1, *[1] * (output.dim() - 1 - dim))  # from the dimension of the units on
        return None if self.dropped is None else output.masked_fill(self.dropped.to(output.device).view(shape), 0.0)

    def _dim_in(self, output: Tensor) -> int:
        """The dimension of the units; raise RuntimeError if there is none, or their number has changed."""
        dims = output.dim()
        dim = unit_dimension(dims, self.units_last) if self.dim is None else self.dim
        if not -dims <= dim < dims:
            raise RuntimeError(f"unit_dim={dim} is not a dimension of an output of shape {tuple(output.shape)}.")
        units = output.shape[dim]
        self.units = units if self.units is None else self.units
        if units != self.units:
            raise RuntimeError(
                f"{self.name!r} returned {units} units, and {self.units} before (or in the checkpoint). ActivationPruner needs "
                "modules with a constant number of units; pass unit_dim= if it used the wrong dimension."
            )
        return dim % dims

    def mask(self, kept: Tensor, device: torch.device) -> None:
        """Mask the units that are False in ``kept``, ``(units,)``, on the host."""
        self.kept, self.units = kept, len(kept)
        self.dropped = None if bool(kept.all()) else (~kept).to(device, non_blocking=True)

    def decide(self, means: Tensor, target: float, device: torch.device) -> None:
        """Mask the ``target`` share of units with the lowest mean activity, ``(units,)``, ties by index.

        At least one unit stays. A unit with nonfinite activity is never masked: that would hide a fault. Masked units stay masked.
        """
        held = torch.zeros(len(means), dtype=torch.bool) if self.kept is None else ~self.kept
        number = max(min(round(target * len(means)), len(means) - 1), int(held.sum()))
        means = torch.where(held, -1.0, means)
        weakest = means.argsort(stable=True)[:number]
        self.mask(torch.ones(len(means), dtype=torch.bool).index_copy(0, weakest, means[weakest].isinf()), device)

    def report(self, activity: Activity | None) -> PrunedUnits:
        """Return the units of a site with a mask, and their activity in the epoch."""
        assert self.kept is not None
        units, masked = len(self.kept), int((~self.kept).sum())
        means = torch.full((units,), math.nan) if activity is None else activity.means
        staying = means[self.kept].tolist()
        return PrunedUnits(
            units=units,
            masked=masked,
            sparsity=masked / units,
            threshold=max(means[~self.kept].tolist(), default=math.nan),
            activity=sum(staying) / len(staying),
        )


class UnitSites:
    """The sites of a model.

    Args:
        modules: (name, module) pairs in order; the modules are not kept.
        root: The model.
        unit_dim: The dimension of the units in their outputs; None to infer it from the module or the layer before it.
        gate: While it is open, the hooks measure; None for one that is open.
        training_only: Whether to measure only in training mode.
    """

    def __init__(
        self,
        modules: Iterable[tuple[str, nn.Module]],
        root: nn.Module,
        unit_dim: int | None = None,
        gate: Gate | None = None,
        training_only: bool = False,
    ) -> None:
        before, gate = layouts(root), Gate(open=True) if gate is None else gate
        self.sites: list[UnitSite] = []
        for name, module in modules:
            kernel = stored(module, "kernel_size") if isinstance(module, nn.modules.conv._ConvNd) else None
            dim = -1 - len(kernel) if isinstance(kernel, tuple) and unit_dim is None else unit_dim  # channels before space
            known = features_last(module)
            self.sites.append(UnitSite(name, dim, before.get(id(module)) if known is None else known, gate, training_only))
        self.device = device_of(root) or torch.device("cpu")

    def merged(self) -> dict[str, Activity]:
        """Return the epoch's activity of all ranks, on the host, of the sites that were called on any: a collective."""
        known = {site.name: site.activity for site in self.sites if site.activity is not None}
        sums = to_host({name: activity.sums for name, activity in known.items()})
        ranks = gather_by_name({name: (sums[name], activity.count) for name, activity in known.items()})
        return {
            site.name: Activity(sum(part for part, _ in found), sum(count for _, count in found))
            for site in self.sites
            if (found := ranks.get(site.name))
        }

    def end_epoch(self, epoch: int, step: int, target: float) -> PruningReport:
        """Make new masks by the epoch's activity, the same on every rank, and report them: a collective.

        A site that was not called keeps its mask.
        """
        found = self.merged()
        for site in self.sites:
            if site.name in found:
                site.decide(found[site.name].means, target, self.device)
            site.activity = None
        pruned = {site.name: site.report(found.get(site.name)) for site in self.sites if site.kept is not None}
        units, masked = sum(entry.units for entry in pruned.values()), sum(entry.masked for entry in pruned.values())
        silent = tuple(site.name for site in self.sites if site.name not in found)
        return PruningReport(epoch, step, target, masked / units if units else 0.0, pruned, silent)

    @property
    def masks(self) -> dict[str, Tensor]:
        """Which units stay, on the host, by the site."""
        return {site.name: site.kept for site in self.sites if site.kept is not None}


def activity_sums(values: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return the sum of |value| of each unit, shape ``(n_units,)``, and the number of values per unit. No host sync."""
    found = values.detach()
    others = [other for other in range(found.dim()) if other != dim]
    if found.dtype in (torch.float16, torch.bfloat16):
        found = found.float()
    sums = torch.linalg.vector_norm(found, ord=1, dim=others) if others else found.abs()
    return sums, found.numel() // max(found.shape[dim], 1)
