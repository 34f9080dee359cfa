"""The public callbacks for Lightning: their arguments and docstrings."""

from lightning_hooks.callbacks.activation_pruner import ActivationPruner
from lightning_hooks.callbacks.activation_ranges import ActivationRangeObserver
from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.callbacks.feature_extractor import FeatureExtractor
from lightning_hooks.callbacks.feature_maps import FeatureMapVisualizer
from lightning_hooks.callbacks.gradcam import GradCAM
from lightning_hooks.callbacks.gradient_clipper import GradientClipper
from lightning_hooks.callbacks.gradient_transform import GradientTransform
from lightning_hooks.callbacks.hook_debugger import HookDebugger
from lightning_hooks.callbacks.input_normalizer import InputNormalizer
from lightning_hooks.callbacks.layer_profiler import LayerProfiler
from lightning_hooks.callbacks.single_monitors import (
    AttentionMonitor,
    FeatureStatsMonitor,
    GradientClipMonitor,
    GradientFlowMonitor,
    RouterMonitor,
    monitors,
)
from lightning_hooks.callbacks.training_monitor import TrainingMonitor

__all__ = [
    "ActivationPruner",
    "ActivationRangeObserver",
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
    "HookedCallback",
    "InputNormalizer",
    "LayerProfiler",
    "RouterMonitor",
    "TrainingMonitor",
    "monitors",
]
