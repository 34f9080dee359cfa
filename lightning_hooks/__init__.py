"""PyTorch Lightning callbacks that listen inside a model while it trains."""

from lightning_hooks.alerts import Alert
from lightning_hooks.callbacks import (
    ActivationPruner,
    ActivationRangeObserver,
    FeatureExtractor,
    FeatureMapVisualizer,
    FeatureStatsMonitor,
    GradCAM,
    GradientClipMonitor,
    GradientClipper,
    GradientFlowMonitor,
    GradientTransform,
    HookedCallback,
    InputNormalizer,
    LayerProfiler,
    monitors,
)
from lightning_hooks.hooks import HookManager, with_hooks

__version__ = "0.1.0"

__all__ = [
    "ActivationPruner",
    "ActivationRangeObserver",
    "Alert",
    "FeatureExtractor",
    "FeatureMapVisualizer",
    "FeatureStatsMonitor",
    "GradCAM",
    "GradientClipMonitor",
    "GradientClipper",
    "GradientFlowMonitor",
    "GradientTransform",
    "HookManager",
    "HookedCallback",
    "InputNormalizer",
    "LayerProfiler",
    "monitors",
    "with_hooks",
]
