"""Scale and zero point that quantise a range of values to eight bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_hooks.hooks.checks import check_choice

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
        scale: Width of a quantisation step, above 0.
        zero_point: The integer that represents 0.
    """

    min: float
    max: float
    scale: float
    zero_point: int


@dataclass(frozen=True, slots=True)
class ActivationRange:
    """The range of a module's output in an epoch, and its quantisation: ``q = clamp(round(x / scale) + zero_point)``.

    Attributes:
        min: Lower end of the range; smaller values are clamped.
        max: Upper end; larger values are clamped.
        scale: Width of a quantisation step, above 0.
        zero_point: The integer that represents 0.
        smallest: The smallest finite value.
        largest: The largest finite value.
        calls: Number of sampled calls.
        count: Number of finite values.
        nonfinite_fraction: Share of NaN and infinite values, 0 to 1, which are in no range.
        channels: The ranges of the output's channels, if ``channel_dim`` is given.
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

    Affine: the range, extended to contain 0, maps to all levels, and the zero point is the level of 0. Symmetric: the range is that
    of the larger absolute end, on both sides of 0. See Jacob et al., "Quantization and training of neural networks for efficient
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
    check_choice("dtype", dtype, LEVELS)
    check_choice("scheme", scheme, SCHEMES)
