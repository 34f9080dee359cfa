"""PyTorch Lightning callbacks that observe a model while it trains.

Names are imported when they are first asked for, so that Lightning can look for :mod:`lightning_hooks.environment` in every
script at no cost.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_hooks.alerts import Alert
    from lightning_hooks.callbacks import (
        ActivationPruner,
        ActivationRangeObserver,
        AttentionMonitor,
        FeatureExtractor,
        FeatureMapVisualizer,
        FeatureStatsMonitor,
        GradCAM,
        GradientClipMonitor,
        GradientClipper,
        GradientFlowMonitor,
        GradientTransform,
        HookDebugger,
        HookedCallback,
        InputNormalizer,
        LayerProfiler,
        RouterMonitor,
        TrainingMonitor,
        monitors,
    )
    from lightning_hooks.hooks import HookManager, with_hooks
    from lightning_hooks.hosts.watch import watch
    from lightning_hooks.statistics.kernels import kernels

__version__ = "0.1.0"

__all__ = [
    "ActivationPruner",
    "ActivationRangeObserver",
    "Alert",
    "AttentionMonitor",
    "FeatureExtractor",
    "FeatureMapVisualizer",
    "FeatureStatsMonitor",
    "GradCAM",
    "GradientClipMonitor",
    "GradientClipper",
    "GradientFlowMonitor",
    "GradientTransform",
    "HookDebugger",
    "HookManager",
    "HookedCallback",
    "InputNormalizer",
    "LayerProfiler",
    "RouterMonitor",
    "TrainingMonitor",
    "kernels",
    "monitors",
    "watch",
    "with_hooks",
]

_PARTS = ("hooks", "statistics", "alerts", "callbacks")


def __getattr__(name: str) -> Any:
    if name == "watch":  # hosts has no names of its own: a session imports what it asks of them
        return import_module(f"{__name__}.hosts.watch").watch
    if name in __all__:
        for part in _PARTS:
            module = import_module(f"{__name__}.{part}")
            if name in module.__all__:
                return globals().setdefault(name, getattr(module, name))
    elif not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
