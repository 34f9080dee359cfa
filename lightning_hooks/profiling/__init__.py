"""Time of each layer in real training steps, in plain torch."""

from lightning_hooks.profiling.report import LayerTimes, ProfileReport, Spread

__all__ = ["LayerTimes", "ProfileReport", "Spread"]
