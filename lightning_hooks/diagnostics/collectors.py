"""What observes a whole training: the collectors, in the order in which they join a session."""

from __future__ import annotations

from typing import Any

from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.diagnostics.routers.collector import RouterCollector

FEATURES: tuple[type[Collector[Any]], ...] = (FeatureCollector, AttentionCollector, RouterCollector)
"""Those of the monitor of feature statistics: the others join where the model has what they measure."""
OF_TRAINING: tuple[tuple[type[Collector[Any]], ...], ...] = (FEATURES, (GradientCollector,), (ClipCollector,))
"""Those of each of the three monitors that observe a training together."""
