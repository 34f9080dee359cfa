"""Statistics as torchmetrics Metrics, for ``self.log``, ``MetricCollection`` and ``FeatureStatsMonitor(metrics=…)``."""

from lightning_hooks.metrics.of_parameters import GradientNorm, UpdateRatio
from lightning_hooks.metrics.of_tensors import DeadUnits, TensorStatistics

__all__ = ["DeadUnits", "GradientNorm", "TensorStatistics", "UpdateRatio"]
