"""What pruning did in an epoch."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.reports.plain import PlainReport


@dataclass(frozen=True, slots=True)
class PrunedUnits:
    """One module's units.

    Attributes:
        units: How many it has.
        masked: How many are masked from now on.
        sparsity: Their share, 0 to 1.
        threshold: The largest activity over the epoch among the masked ones, of what they put out before the mask; NaN if none is
            masked, or the module was not called.
        activity: Mean activity of the units that stay, over the epoch; NaN if the module was not called.
    """

    units: int
    masked: int
    sparsity: float
    threshold: float
    activity: float


@dataclass(frozen=True, slots=True)
class PruningReport(PlainReport):
    """The masks made at the end of an epoch, in force from the next.

    ``to_dict()`` gives plain JSON data, and ``from_dict()`` the report again.

    Attributes:
        epoch: The epoch whose activity decided, from 0.
        step: The trainer's ``global_step`` at its end.
        target: The share of each module's units that the schedule asks for.
        sparsity: The share of all units of all modules that is masked.
        sites: Module name to its units, in model order; only modules that have been called.
        silent: Chosen modules that were not called in the epoch's measured batches, on any rank; they keep their masks.
    """

    epoch: int
    step: int
    target: float
    sparsity: float
    sites: dict[str, PrunedUnits]
    silent: tuple[str, ...] = ()
