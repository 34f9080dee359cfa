"""Ranges of activations, and the scale and zero point of a quantiser that they give."""

from lightning_hooks.quantization.ranges import RangeTable
from lightning_hooks.quantization.scales import ActivationRange, quantization_parameters

__all__ = ["ActivationRange", "RangeTable", "quantization_parameters"]
