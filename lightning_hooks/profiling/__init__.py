"""Time of each layer in real training steps, in plain torch."""

from lightning_hooks.profiling.report import LayerTimes, ProfileReport, Spread
from lightning_hooks.profiling.tracer import ProfileSession

__all__ = ["LayerTimes", "ProfileReport", "ProfileSession", "Spread"]
