"""The tally of clip events over many optimizer steps, as one mergeable vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

EVENT_TOLERANCE = 1e-6
"""Relative decrease of a parameter's norm above which a step counts as clipped; less is rounding."""

TOP = 5
"""The number of parameters that a report names as the cause of the clips."""


class ClipColumn(IntEnum):
    """The first columns of a tally; the shares of the parameters follow. Columns are summed, except the maxima."""

    STEPS = 0  # steps taken
    FINITE = 1  # of these, with a finite norm
    CLIPPED = 2
    BEFORE = 3  # sum of norms before clipping, over finite steps
    BEFORE_MAX = 4
    AFTER = 5
    AFTER_MAX = 6
    COEFFICIENT = 7  # sum of after / before
    RATED = 8  # finite steps with a norm above 0, over which the coefficient is averaged
    NONFINITE = 9  # steps taken with a norm that is not finite
    SKIPPED = 10  # steps not taken


N_CLIP_COLUMNS = len(ClipColumn)


@dataclass(frozen=True, slots=True)
class ClipStats:
    """Clip events of one optimizer in an epoch. Every step counts, whatever the sampling.

    Norms are L2 norms over all gradients of the optimizer. Means and maxima are over steps with a finite norm. With several ranks,
    which step together, counts are the largest of any rank, means are over the steps of all ranks, and maxima the largest of any.

    Attributes:
        steps: Optimizer steps taken.
        clipped_steps: Of these, the steps whose gradients clipping reduced.
        rate: ``clipped_steps / steps``, in [0, 1]; NaN without steps.
        norm_before: Mean norm before clipping.
        norm_before_max: The largest.
        norm_after: Mean norm at the step.
        norm_after_max: The largest.
        coefficient: Mean of after / before over steps with a norm above 0: 1 where nothing was clipped.
        nonfinite_steps: Steps taken although the gradient held a NaN or an infinite value.
        skipped_steps: Steps that a loss scaler skipped.
        top_parameters: (name, share) of the parameters that caused the clips: mean share of the squared norm before
            clipping over the clipped steps, largest first; at most ``TOP``.
        limit: The norm to which clipping is configured, or None where it is not by norm.
    """

    steps: int
    clipped_steps: int
    rate: float
    norm_before: float
    norm_before_max: float
    norm_after: float
    norm_after_max: float
    coefficient: float
    nonfinite_steps: int
    skipped_steps: int
    top_parameters: tuple[tuple[str, float], ...]
    limit: float | None = None


def tally(before: Tensor, after: Tensor, taken: Tensor) -> Tensor:
    """Tally optimizer steps.

    A step is clipped if it was taken, its norm is finite, and clipping reduced the norm of at least one parameter's gradient. The
    comparison by parameter also finds clipping by value, which may hardly change the total norm.

    Args:
        before: Norms of the parameters' gradients before clipping, shape ``(k, n)``; 0 for a missing gradient.
        after: Norms at the step, shape ``(k, n)``.
        taken: Which steps were taken, boolean, shape ``(k,)``.

    Returns:
        The tally, shape ``(n_clip_columns + n,)``.
    """
    before_total = torch.linalg.vector_norm(before, dim=1)
    after_total = torch.linalg.vector_norm(after, dim=1)
    finite = taken & torch.isfinite(before_total) & torch.isfinite(after_total)
    before_kept = torch.where(finite, before_total, 0)
    after_kept = torch.where(finite, after_total, 0)
    clipped = finite & (after < before * (1 - EVENT_TOLERANCE)).any(1)
    rated = before_kept > 0
    coefficient = torch.where(rated, after_kept / torch.where(rated, before_kept, 1), 0)
    shares = torch.where(clipped[:, None], (before / torch.where(rated, before_kept, 1)[:, None]) ** 2, 0)
    columns = {
        ClipColumn.STEPS: taken.sum(),
        ClipColumn.FINITE: finite.sum(),
        ClipColumn.CLIPPED: clipped.sum(),
        ClipColumn.BEFORE: before_kept.sum(),
        ClipColumn.BEFORE_MAX: before_kept.amax(),
        ClipColumn.AFTER: after_kept.sum(),
        ClipColumn.AFTER_MAX: after_kept.amax(),
        ClipColumn.COEFFICIENT: coefficient.sum(),
        ClipColumn.RATED: rated.sum(),
        ClipColumn.NONFINITE: (taken & ~finite).sum(),
        ClipColumn.SKIPPED: (~taken).sum(),
    }
    return torch.cat((torch.stack([columns[column].to(before.dtype) for column in ClipColumn]), shares.sum(0)))


def merge_tallies(tallies: Tensor) -> Tensor:
    """Merge tallies along the first dimension: ``(k, …, m)`` to ``(…, m)``."""
    merged = tallies.sum(0)
    for column in (ClipColumn.BEFORE_MAX, ClipColumn.AFTER_MAX):
        merged[..., column] = tallies[..., column].amax(0)
    return merged


def clip_stats(row: Sequence[float], names: Sequence[str], limit: float | None = None) -> ClipStats:
    """Return the report of a tally.

    Args:
        row: A tally as Python numbers, ``n_clip_columns + n`` of them.
        names: The ``n`` parameters, in the order of the shares.
        limit: The configured norm, or None.
    """
    steps, finite, clipped = (int(row[c]) for c in (ClipColumn.STEPS, ClipColumn.FINITE, ClipColumn.CLIPPED))
    rated, shared = row[ClipColumn.RATED], sum(row[N_CLIP_COLUMNS:])  # the shares of one clipped step sum to 1
    ranked = sorted(zip(names, row[N_CLIP_COLUMNS:], strict=True), key=lambda pair: -pair[1])
    return ClipStats(
        steps=steps,
        clipped_steps=clipped,
        rate=clipped / steps if steps else math.nan,
        norm_before=row[ClipColumn.BEFORE] / finite if finite else math.nan,
        norm_before_max=row[ClipColumn.BEFORE_MAX] if finite else math.nan,
        norm_after=row[ClipColumn.AFTER] / finite if finite else math.nan,
        norm_after_max=row[ClipColumn.AFTER_MAX] if finite else math.nan,
        coefficient=row[ClipColumn.COEFFICIENT] / rated if rated else math.nan,
        nonfinite_steps=int(row[ClipColumn.NONFINITE]),
        skipped_steps=int(row[ClipColumn.SKIPPED]),
        top_parameters=tuple((name, share / shared) for name, share in ranked[:TOP] if share > 0),
        limit=limit,
    )
