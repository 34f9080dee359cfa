"""From a tensor to a row, from rows to one row, and from a row to named numbers."""

from lightning_hooks.statistics.feature_stats import FeatureStats, feature_stats
from lightning_hooks.statistics.feature_table import FeatureTable
from lightning_hooks.statistics.gradient_tables import GradientTable, ParameterTable
from lightning_hooks.statistics.gradients import (
    GradientStats,
    ParameterGradientStats,
    WeightSample,
    gradient_stats,
    parameter_gradient_stats,
)
from lightning_hooks.statistics.kernels import kernels, summarize
from lightning_hooks.statistics.routing import CodebookStats, RouterStats
from lightning_hooks.statistics.rows import Column, empty_table, merge, scaled
from lightning_hooks.statistics.units import Saturation, is_rectifier, saturation_of

__all__ = [
    "CodebookStats",
    "Column",
    "FeatureStats",
    "FeatureTable",
    "GradientStats",
    "GradientTable",
    "ParameterGradientStats",
    "ParameterTable",
    "RouterStats",
    "Saturation",
    "WeightSample",
    "empty_table",
    "feature_stats",
    "gradient_stats",
    "is_rectifier",
    "kernels",
    "merge",
    "parameter_gradient_stats",
    "saturation_of",
    "scaled",
    "summarize",
]
