"""Masks for the units of a model with the lowest activity, in plain torch."""

from lightning_hooks.pruning.sites import PrunedUnits, PruningReport, UnitSites, target_at

__all__ = ["PrunedUnits", "PruningReport", "UnitSites", "target_at"]
