"""The report of pruning in an epoch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lightning_hooks.declare.plain import PlainReport


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
        scalars: dict[str, float] = {}
        for name in [*self.sites, *(silent for silent in self.silent if silent not in self.sites)]:
            found = self.sites.get(name)
            scalars[f"{prefix}/{name}/sparsity"] = found.sparsity if found else math.nan
            scalars[f"{prefix}/{name}/threshold"] = found.threshold if found else math.nan
        return {**scalars, f"{prefix}/sparsity": self.sparsity, f"{prefix}/target": self.target}
