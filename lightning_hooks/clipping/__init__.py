"""Clipping policies as pure functions, and the tally of clip events."""

from lightning_hooks.clipping.policies import AGC, AutoClip, GlobalNorm, PerTensor, Value, ZClip

__all__ = ["AGC", "AutoClip", "GlobalNorm", "PerTensor", "Value", "ZClip"]
