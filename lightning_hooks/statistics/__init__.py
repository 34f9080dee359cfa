"""From a tensor to a row, from rows to one row: columns, tables, how they merge, and the kernels that read tensors."""

from lightning_hooks.statistics.kernels import kernels, summarize
from lightning_hooks.statistics.rows import Column, empty_table, merge, scaled
from lightning_hooks.statistics.units import Saturation, is_rectifier, saturation_of
from lightning_hooks.statistics.weight_sample import WeightSample

__all__ = [
    "Column",
    "Saturation",
    "WeightSample",
    "empty_table",
    "is_rectifier",
    "kernels",
    "merge",
    "saturation_of",
    "scaled",
    "summarize",
]
