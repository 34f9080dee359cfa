"""Trainings that become unstable over some hundred steps, each with a healthy twin, and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.faults import data
from tests.evidence.faults.zoo import SEEDS

WINDOW = 20
"""Training batches of a monitor's window."""
STEPS = 320
"""Training batches of each training."""
RISE = 2.0
"""A loss has diverged that is so many times its running minimum …"""
LASTING = 20
"""… in so many batches in a row; or that is not finite."""

Build = Callable[[bool], "Training"]


@dataclass(frozen=True)
class Training:
    """A training, ready for ``Trainer(max_epochs=1, **kwargs).fit(module, loader)``."""

    module: LightningModule
    loader: DataLoader[Any]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One instability.

    Attributes:
        name: Its name in the table.
        story: One sentence for the table.
        build: From whether the instability is there to the training, after ``torch.manual_seed``.
        calibrates: Whether rules may be set by looking at it, on seeds 0 and 1.
    """

    name: str
    story: str
    build: Build
    calibrates: bool


CASES: dict[str, Case] = {}


def instability(story: str, calibrates: bool = False) -> Callable[[Build], Build]:
    """Enter a function ``build(planted)`` under its name."""

    def enter(build: Build) -> Build:
        CASES[build.__name__] = Case(build.__name__, story, build, calibrates)
        return build

    return enter


def divergence(losses: Sequence[float]) -> int | None:
    """The batch at which a loss begins to be diverged, counted from 0; None if it does not diverge.

    Where a loss that is not finite comes after batches with too large ones, it is the first of these.
    """
    lowest, since = math.inf, 0
    for batch, loss in enumerate(losses):
        if not math.isfinite(loss):
            return batch - since
        lowest = min(lowest, loss)
        since = since + 1 if loss > RISE * lowest else 0
        if since == LASTING:
            return batch - LASTING + 1
    return None


def lead_time(warned: int | None, diverged: int) -> int:
    """Batches between a warning, given after ``warned`` batches, and the divergence; 0 if it came too late or never."""
    return 0 if warned is None else max(diverged - warned, 0)


def median_with_interval(values: Sequence[float], draws: int = 2000) -> tuple[float, float, float]:
    """The median, and the bounds of its 95 % bootstrap interval."""
    if not values:
        return math.nan, math.nan, math.nan
    sample = np.random.default_rng(0).choice(np.asarray(values, dtype=float), (draws, len(values)))
    low, high = np.quantile(np.median(sample, axis=1), (0.025, 0.975))
    return float(np.median(values)), float(low), float(high)


def characters(length: int, batch: int, steps: int = STEPS) -> DataLoader[Any]:
    """Pieces of Python's documentation and the character after each; every position of it, ``length`` at a time."""
    x, y, _, _ = data.text(length, n=60_000 // length - 200)
    return endless(x, y, batch, steps)


def endless(x: torch.Tensor, y: torch.Tensor, batch: int, steps: int = STEPS) -> DataLoader[Any]:
    """A loader of one epoch of so many batches: samples come again in another order."""
    order = torch.cat([torch.randperm(len(x)) for _ in range(-(-batch * steps // len(x)))])[: batch * steps]
    return DataLoader(TensorDataset(x[order], y[order]), batch)


__all__ = ["CASES", "SEEDS", "STEPS", "WINDOW", "Case", "Training", "divergence", "instability", "lead_time"]
