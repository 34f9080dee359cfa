"""Masks for the units of a model with the lowest activity, in plain torch."""

from lightning_hooks.pruning.sites import PrunedUnits, PruningReport, UnitSites, target_at
from lightning_hooks.pruning.weights import zero_units

__all__ = ["PrunedUnits", "PruningReport", "UnitSites", "target_at", "zero_units"]
