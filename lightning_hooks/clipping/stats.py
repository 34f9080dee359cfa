"""The tally of clip events over many optimizer steps, as one mergeable vector, and the ledger that stores each step's norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.clipping.watch import NormHistory

EVENT_TOLERANCE = 1e-6  # relative decrease of a parameter's norm above which a step counts as clipped; less is rounding

TOP = 5  # the number of parameters that a report names as the cause of the clips


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
    before_total, after_total = (torch.linalg.vector_norm(norms, dim=1) for norms in (before, after))
    finite = taken & torch.isfinite(before_total) & torch.isfinite(after_total)
    before_kept, after_kept = (torch.where(finite, total, 0) for total in (before_total, after_total))
    clipped = finite & (after < before * (1 - EVENT_TOLERANCE)).any(1)
    rated = before_kept > 0
    coefficient = torch.where(rated, after_kept / torch.where(rated, before_kept, 1), 0)
    shares = torch.where(clipped[:, None], (before / torch.where(rated, before_kept, 1)[:, None]) ** 2, 0)
    columns = (  # in the order of ClipColumn
        *(taken.sum(), finite.sum(), clipped.sum()),
        *(before_kept.sum(), before_kept.amax(), after_kept.sum(), after_kept.amax()),
        *(coefficient.sum(), rated.sum(), (taken & ~finite).sum(), (~taken).sum()),
    )
    return torch.cat((torch.stack([column.to(before.dtype) for column in columns]), shares.sum(0)))


def merge_tallies(tallies: Tensor) -> Tensor:
    """Merge tallies along the first dimension: ``(k, …, m)`` to ``(…, m)``."""
    merged = tallies.sum(0)
    for column in (ClipColumn.BEFORE_MAX, ClipColumn.AFTER_MAX):
        merged[..., column] = tallies[..., column].amax(0)
    return merged


def clip_stats(row: Sequence[float], names: Sequence[str], limit: float | None = None) -> ClipStats:
    """Return the report of a tally, as Python numbers; ``names`` are the parameters in the order of the shares."""
    steps, finite, clipped, before, before_max, after, after_max, coefficient, rated, nonfinite, skipped = row[:N_CLIP_COLUMNS]
    steps, finite, clipped, shares = int(steps), int(finite), int(clipped), row[N_CLIP_COLUMNS:]
    shared, ranked = sum(shares), sorted(zip(names, shares, strict=True), key=lambda pair: -pair[1])  # 1 for each clipped step
    return ClipStats(
        steps=steps,
        clipped_steps=clipped,
        rate=clipped / steps if steps else math.nan,
        norm_before=before / finite if finite else math.nan,
        norm_before_max=before_max if finite else math.nan,
        norm_after=after / finite if finite else math.nan,
        norm_after_max=after_max if finite else math.nan,
        coefficient=coefficient / rated if rated else math.nan,
        nonfinite_steps=int(nonfinite),
        skipped_steps=int(skipped),
        top_parameters=tuple((name, share / shared) for name, share in ranked[:TOP] if share > 0),
        limit=limit,
    )


PAGE = 128  # steps stored before they are tallied, so that the cost of a tally is shared; fewer with many parameters

NUMBERS = 8192  # the largest number of norms in a page, which holds at least four steps: it limits the memory


class ClipLedger:
    """Stores norms before and after clipping on the device, and tallies each full page. No host sync.

    Attributes:
        total: The tally of every step of the pages so far, shape ``(n_clip_columns + n_parameters,)``.
        watch: The events at single steps.
    """

    def __init__(self, n_parameters: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self._n_parameters = n_parameters
        self._page_size = max(4, min(PAGE, NUMBERS // max(n_parameters, 1)))
        self._open: list[tuple[Any, ...]] = []  # the arguments of write(), of the page that is not full yet
        self.watch = NormHistory(device, dtype)
        self.total = torch.zeros(N_CLIP_COLUMNS + n_parameters, device=device, dtype=dtype)

    def write(self, before: Tensor, after: Tensor, taken: bool, skips_nonfinite: bool = False, batch: int = 0) -> None:
        """Add one optimizer step. The norms are stored without a copy until the page is tallied, so they must not change.

        Args:
            before: L2 norms before clipping, shape ``(n,)``, of all parameters or of the first ``n``; 0 for a missing gradient.
            after: Norms at the step, of the same shape.
            taken: Whether the optimizer took the step.
            skips_nonfinite: The optimizer itself skips a step whose gradients are not finite (fused optimizers under a
                loss scaler): a step with such norms counts as not taken.
            batch: The training batch, from 0.
        """
        later = self._n_parameters - before.shape[0]  # parameters that were added later have 0
        if later:
            before, after = (torch.cat((norms, norms.new_zeros(later))) for norms in (before, after))
        self._open.append((before, after, taken, skips_nonfinite, batch))
        if len(self._open) == self._page_size:
            self.close_page()

    def grow(self, n_parameters: int) -> None:
        """Extend the ledger to ``n_parameters``; the new parameters come last."""
        self.close_page()
        self.total = torch.cat((self.total, self.total.new_zeros(n_parameters - self._n_parameters)))
        self._n_parameters = n_parameters

    def close_page(self) -> None:
        """Tally the steps of the page that is not full yet."""
        if not self._open:
            return
        befores, afters, steps_taken, skips, batches = zip(*self._open, strict=True)
        self._open = []
        before, after = torch.stack(befores).to(self.total), torch.stack(afters).to(self.total)
        taken = torch.tensor(steps_taken).to(before.device, non_blocking=True)
        if any(skips):
            taken &= torch.isfinite(before.sum(1)) | ~torch.tensor(skips).to(before.device, non_blocking=True)
        self.total = merge_tallies(torch.stack((self.total, tally(before, after, taken))))
        self.watch.read(before, batches, taken)

    def reset(self) -> None:
        """Start an empty ledger."""
        self._open = []
        self.watch.reset()
        self.total = torch.zeros_like(self.total)  # a new tensor: the caller may still hold the old one
