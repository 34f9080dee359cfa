"""Clipping policies as pure functions, and the tally of clip events."""

from lightning_hooks.clipping.policies import (
    AGC,
    POLICIES,
    AutoClip,
    ClipPolicy,
    GlobalNorm,
    PerTensor,
    Value,
    ZClip,
    make_policy,
)
from lightning_hooks.clipping.stats import ClipLedger, ClipStats, clip_stats, merge_tallies, tally
from lightning_hooks.clipping.watch import NormHistory, StepEvents, step_events

__all__ = [
    "AGC",
    "POLICIES",
    "AutoClip",
    "ClipLedger",
    "ClipPolicy",
    "ClipStats",
    "GlobalNorm",
    "NormHistory",
    "PerTensor",
    "StepEvents",
    "Value",
    "ZClip",
    "clip_stats",
    "make_policy",
    "merge_tallies",
    "step_events",
    "tally",
]
