"""From a range of values to the scale and zero point that quantise it to eight bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LEVELS: dict[str, tuple[int, int]] = {"int8": (-128, 127), "uint8": (0, 255)}
"""The smallest and largest integer of each type."""

SCHEMES = ("affine", "symmetric")
_EPS = torch.finfo(torch.float32).eps  # the smallest scale


@dataclass(frozen=True, slots=True)
class ChannelRange:
    """The range of one channel.

    Attributes:
        min: Its lower end.
        max: Its upper end.
        scale: Width of one quantisation step.
        zero_point: The integer that stands for 0.
    """

    min: float
    max: float
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class ActivationRange:
    """The range of a module's output over an epoch, and how to quantise it: ``q = clamp(round(x / scale) + zero_point)``.

    Attributes:
        min: Lower end of the range that the method chose; values below are clamped.
        max: Upper end.
        scale: Width of one quantisation step.
        zero_point: The integer that stands for 0.
        smallest: The smallest finite value seen.
        largest: The largest finite value seen.
        calls: Calls listened to.
        count: Finite values seen.
        nonfinite_fraction: Share of values that were NaN or infinite; they are in no range.
        channels: The ranges of the output's channels, if they were asked for.
    """

    min: float
    max: float
    scale: float
    zero_point: int
    smallest: float
    largest: float
    calls: int
    count: int
    nonfinite_fraction: float
    channels: tuple[ChannelRange, ...] = ()


def quantization_parameters(low: Tensor, high: Tensor, dtype: str = "int8", scheme: str = "affine") -> tuple[Tensor, Tensor]:
    """Return the scales and zero points that map ranges to eight bits, as ``torch.ao``'s observers do.

    Affine: the range, widened to hold 0, fills all levels, and the zero point is the level of 0. Symmetric: the larger of the two
    ends, on both sides of 0. See Jacob et al., "Quantization and training of neural networks for efficient
    integer-arithmetic-only inference" (2018).

    Args:
        low: Lower ends, float32, any shape.
        high: Upper ends, of the same shape.
        dtype: ``int8`` or ``uint8``.
        scheme: ``affine`` or ``symmetric``.

    Returns:
        Scales (float32, above 0) and zero points (int64), of the shape of ``low``.

    Raises:
        ValueError: If ``dtype`` or ``scheme`` is unknown.
    """
    check_levels(dtype, scheme)
    smallest, largest = LEVELS[dtype]
    negative, positive = low.clamp(max=0.0), high.clamp(min=0.0)
    if scheme == "symmetric":
        scale = torch.maximum(-negative, positive) / (float(largest - smallest) / 2)
        zero = torch.full_like(scale, 0 if dtype == "int8" else 128, dtype=torch.int64)
        return scale.clamp(min=_EPS), zero
    scale = ((positive - negative) / float(largest - smallest)).clamp(min=_EPS)
    zero = smallest - torch.round(negative / scale).to(torch.int64)
    return scale, zero.clamp(smallest, largest)


def check_levels(dtype: object, scheme: object) -> None:
    """Raise ValueError unless ``dtype`` and ``scheme`` are known."""
    if dtype not in LEVELS:
        raise ValueError(f"dtype must be one of {', '.join(LEVELS)}; got {dtype!r}.")
    if scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}; got {scheme!r}.")
