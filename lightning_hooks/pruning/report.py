"""The schedule of the masked share of units, and the report of pruning in an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_hooks.declare.plain import PlainReport
from lightning_hooks.hooks.checks import check_choice, check_count
from lightning_hooks.trackers import table_lines

SCHEDULES = ("cubic", "linear")
"""The schedules, from 0 to ``amount``."""


def check_schedule(amount: object, start_epoch: object, end_epoch: object, schedule: object) -> None:
    """Raise TypeError or ValueError if an argument of :func:`target_at` is of a wrong type or out of range."""
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"amount must be a number above 0 and below 1; got {amount!r}.")
    if not 0 < amount < 1:
        raise ValueError(f"amount must be above 0 and below 1, the share of units to mask; got {amount!r}.")
    check_count("end_epoch", end_epoch, least=check_count("start_epoch", start_epoch, least=0))
    check_choice("schedule", schedule, SCHEDULES)


def target_at(epoch: int, amount: float, start_epoch: int, end_epoch: int, schedule: str = "cubic") -> float:
    """Return the share of units to mask at the end of an epoch, counted from 0; 0 before ``start_epoch``.

    With the progress p, from ``1 / (end_epoch - start_epoch + 1)`` at the end of ``start_epoch`` to 1 at the end of ``end_epoch``:
    ``linear`` is ``amount * p``, and ``cubic`` is ``amount * (1 - (1 - p) ** 3)``, which masks most units early (Zhu and Gupta
    2017, "To prune, or not to prune", equation 1, with initial sparsity 0).
    """
    if epoch < start_epoch:
        return 0.0
    part = min(1.0, (epoch - start_epoch + 1) / (end_epoch - start_epoch + 1))
    return amount * (part if schedule == "linear" else 1.0 - (1.0 - part) ** 3)


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
        names = dict.fromkeys((*self.sites, *self.silent))
        of_sites = {
            f"{prefix}/{name}/{stat}": getattr(self.sites.get(name), stat, math.nan)
            for name in names
            for stat in ("sparsity", "threshold")
        }
        return {**of_sites, f"{prefix}/sparsity": self.sparsity, f"{prefix}/target": self.target}

    def summary_lines(self) -> list[str]:
        """What the terminal shows."""
        rows = [(name, site.units, site.masked, site.threshold, site.activity) for name, site in self.sites.items()]
        table = table_lines(("module", "units", "masked", "threshold", "activity of the others"), rows)
        of_all = f"{self.sparsity:.0%} of the units are masked (target: {self.target:.0%})"
        return [f"Pruning, epoch {self.epoch}: {of_all}.", *(f"  {line}" for line in table)]
