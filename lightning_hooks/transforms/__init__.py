"""Normalisation of inputs and transforms of gradients, which alter training, in plain torch."""

from lightning_hooks.transforms.gradients import (
    TRANSFORMS,
    ChangeGradient,
    Factor,
    GradientFunction,
    GradientState,
    HookOutput,
    Schedule,
    clamp_gradient,
    noisy_gradient,
    scale_gradient,
    zero_gradient,
)
from lightning_hooks.transforms.normalization import Argument, Normalization

__all__ = [
    "TRANSFORMS",
    "Argument",
    "ChangeGradient",
    "Factor",
    "GradientFunction",
    "GradientState",
    "HookOutput",
    "Normalization",
    "Schedule",
    "clamp_gradient",
    "noisy_gradient",
    "scale_gradient",
    "zero_gradient",
]
