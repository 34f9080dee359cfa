"""The course of the loss: where it began, how low it got, and the batches at which it leapt."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

FIRST = 8
"""Losses whose median is where a training began."""
BLOCK = 32
"""Losses in a row whose median is a level."""
BEFORE = 128
"""Losses before a batch that it is compared with, as OLMo-core does."""
FEWEST_BEFORE = 64
"""So many there must be, likewise."""
LASTING = 3
"""Batches in a row at which the loss must be too large."""


@dataclass(frozen=True, slots=True)
class LossSpike:
    """The batches in a row whose loss was farthest above that of the 128 batches before them.

    Attributes:
        batch: The first of them, as index of the batch in the epoch; of a window before this one if it is negative.
        loss: The smallest of their losses.
        mean: The mean loss of the batches before.
        sigmas: Standard deviations of these between the two.
        ratio: The same distance, over that from the mean to the largest loss of the batches before.
        before: How many batches before were compared with.
    """

    batch: int
    loss: float
    mean: float
    sigmas: float
    ratio: float
    before: int


def start_of(losses: Values) -> float:
    """Where a training began: the median of its first losses; NaN while there are too few."""
    return float(np.median(losses[:FIRST])) if len(losses) >= FIRST else math.nan


def lowest_level(losses: Values) -> float:
    """The lowest median of losses in a row; NaN where there are too few."""
    if len(losses) < BLOCK:
        return math.nan
    blocks = np.lib.stride_tricks.sliding_window_view(losses, BLOCK)[:: -(BLOCK // 4)]
    return float(np.median(blocks, axis=1).min())


def largest_spike(losses: Values, new: int) -> tuple[int, LossSpike] | None:
    """The batches in a row that are farthest above those before them.

    Args:
        losses: Finite ones, in order.
        new: How many of them, the last, were not looked at before.

    Returns:
        The place of the first among the losses, and the spike with batch 0; None where there are too few.
    """
    first = max(FEWEST_BEFORE, len(losses) - new - LASTING + 1)
    if len(losses) < first + LASTING:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(losses, LASTING).min(1)[first:]
    padded = np.concatenate((np.full(BEFORE, np.nan), losses))  # of those before the first there are none
    before = np.lib.stride_tricks.sliding_window_view(padded, BEFORE)[first : first + len(runs)]
    mean, std, top = np.nanmean(before, 1), np.nanstd(before, 1), np.nanmax(before, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, sigmas = (runs - mean) / (top - mean), (runs - mean) / std
    ratios = np.where(runs > mean, ratios, -np.inf)
    place = int(np.argmax(ratios))
    if not ratios[place] > 0:
        return None
    number = min(BEFORE, first + place)
    found = float(runs[place]), float(mean[place]), float(sigmas[place]), float(ratios[place])
    return first + place, LossSpike(0, *found, number)
