"""What happened at single optimizer steps: the largest jump of the gradient's norm, its growth, the first that was not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

WINDOW = 128
"""Steps before, against which a step is held; OLMo-core's ``SkipStepOptimizer`` takes as many."""

FIRST_STEPS = 8
"""The steps at a training's start that say how large its gradients are."""


class EventColumn(IntEnum):
    """What each number of an optimizer's events holds."""

    JUMP = 0  # largest norm of a step over the largest of all steps before it; 0 while there is none to compare
    JUMP_SIGMAS = 1  # its distance from the mean of the window before, in standard deviations
    JUMP_NORM = 2
    JUMP_MEAN = 3  # of the window
    JUMP_BEFORE = 4  # how many steps there were to compare with
    JUMP_BATCH = 5
    JUMP_PARAMETER = 6  # the parameter with the largest share in it
    GROWTH = 7  # largest norm over the largest of the training's first steps
    GROWTH_NORM = 8
    GROWTH_BATCH = 9
    BAD_BATCH = 10  # first batch whose step was taken with a gradient that is not finite; +inf if none
    BAD_FIRST = 11  # of that step: the first parameter, in the model's order, that is not finite
    BAD_LAST = 12  # the last one
    BAD_COUNT = 13
    BAD_OF = 14  # how many had a gradient that was not zero


N_EVENT_COLUMNS = len(EventColumn)


@dataclass(frozen=True, slots=True)
class StepEvents:
    """What happened at single steps of one optimizer in an epoch; every step is looked at, whatever the sampling.

    Norms are total L2 norms over the optimizer's gradients before clipping. Batches are training batches of the epoch, from 0.

    Attributes:
        jump: The largest ratio of a step's norm to the largest norm of all steps of the training before it; NaN while there
            were none.
        jump_sigmas: How many standard deviations that step's norm was above the mean of the ``WINDOW`` steps before it; infinite
            where those were all the same.
        jump_norm: That step's norm.
        jump_mean: The mean norm of the steps before it.
        jump_before: How many steps there were before it, at most ``WINDOW``.
        jump_batch: Its batch.
        jump_parameter: The parameter with the largest share of it.
        growth: The largest ratio of a step's norm to the largest norm of the training's first ``FIRST_STEPS`` steps.
        growth_norm: The norm of the step at which it was largest.
        growth_batch: The batch of that step.
        first_nonfinite_batch: The first batch whose step was taken with a NaN or infinite gradient; None if none was.
        first_nonfinite_parameters: Of that step: the first and the last parameter, in the model's order, whose gradient was
            not finite; empty if there was none.
        nonfinite_share: Of that step: the share of the parameters whose gradient was not finite, among those that had one.
        unzeroed_steps: Steps whose gradients had not been zeroed since the step before.
        wasted_clips: Steps whose gradients were changed after the step and then zeroed: clipping that came too late, or too
            early.
    """

    jump: float = math.nan
    jump_sigmas: float = math.nan
    jump_norm: float = math.nan
    jump_mean: float = math.nan
    jump_before: int = 0
    jump_batch: int | None = None
    jump_parameter: str = ""
    growth: float = math.nan
    growth_norm: float = math.nan
    growth_batch: int | None = None
    first_nonfinite_batch: int | None = None
    first_nonfinite_parameters: tuple[str, ...] = ()
    nonfinite_share: float = 0.0
    unzeroed_steps: int = 0
    wasted_clips: int = 0


def empty_events(device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> Tensor:
    """The events of no step, shape ``(n_event_columns,)``."""
    events = torch.zeros(N_EVENT_COLUMNS, device=device, dtype=dtype)
    events[EventColumn.BAD_BATCH] = math.inf
    return events


_BLOCKS = ((EventColumn.JUMP, EventColumn.GROWTH), (EventColumn.GROWTH, EventColumn.BAD_BATCH))


def merge_events(events: Tensor) -> Tensor:
    """Merge the events of several ranks, ``(world, …, n_event_columns)`` to ``(…, n_event_columns)``.

    The jump and the growth are those of the rank where they were largest, the step that was not finite that of the rank that had it
    first.
    """
    merged = events[0].clone()
    for first, last in _BLOCKS:
        merged[..., first:last] = _of_rank(events, events[..., first].argmax(0))[..., first:last]
    bad = _of_rank(events, events[..., EventColumn.BAD_BATCH].argmin(0))
    merged[..., EventColumn.BAD_BATCH :] = bad[..., EventColumn.BAD_BATCH :]
    return merged


def _of_rank(events: Tensor, rank: Tensor) -> Tensor:
    """Each row of the rank that ``rank`` names for it."""
    return events.gather(0, rank[None, ..., None].expand(1, *events.shape[1:]))[0]


class NormWatch:
    """Holds each step's norm against those before, many steps at a time, on the device. No host sync.

    What came before lasts from epoch to epoch; the events are the epoch's.

    Args:
        device: Where the gradients are.
        dtype: Of the norms.
    """

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self.recent = torch.full((WINDOW,), math.nan, device=device, dtype=dtype)
        self.past = torch.zeros(3, device=device, dtype=dtype)  # steps seen, the largest norm, the largest of the first steps
        self.events = empty_events(device, dtype)

    def read(self, norms: Tensor, batches: Sequence[int], taken: Tensor) -> None:
        """Take up steps.

        Args:
            norms: Norms of the parameters' gradients before clipping, shape ``(k, n)``.
            batches: The training batch of each step.
            taken: Which steps were taken, boolean, shape ``(k,)``; the others are not looked at.
        """
        steps = norms.shape[0]
        when = torch.tensor(batches, dtype=norms.dtype).to(norms.device, non_blocking=True)
        total = torch.linalg.vector_norm(norms, dim=1)
        finite = taken & torch.isfinite(total)
        known = torch.where(finite, total, math.nan)
        series = torch.cat((self.recent, known))
        before = series.unfold(0, WINDOW, 1)[:steps]  # (k, WINDOW): the steps before each
        counted = torch.isfinite(before)
        count = counted.sum(1)
        mean = torch.where(counted, before, 0).sum(1) / count.clamp(min=1)
        variance = torch.where(counted, (before - mean[:, None]) ** 2, 0).sum(1) / (count - 1).clamp(min=1)
        seen = self.past[0] + torch.cumsum(finite, 0) - finite.to(norms.dtype)
        kept = torch.where(finite, total, 0)
        largest = torch.cummax(torch.cat((self.past[1:2], kept)), 0).values
        first = torch.cummax(torch.cat((self.past[2:3], torch.where(seen < FIRST_STEPS, kept, 0))), 0).values
        # Against norms that were 0, as those of a part that does not learn yet, nothing can be said.
        jump = torch.where(finite & (largest[:-1] > 0), total / largest[:-1], 0)
        growth = torch.where(finite & (seen >= FIRST_STEPS) & (first[1:] > 0), total / first[1:], 0)
        sigmas = (total - mean) / variance.sqrt()  # infinite where those before were all the same
        parameter = norms.nan_to_num(0.0, 0.0, 0.0).argmax(1)
        jumps = torch.stack((jump, sigmas, total, mean, count, when, parameter), 1).to(norms.dtype)
        growths = torch.stack((growth, total, when), 1)
        self._keep_larger(EventColumn.JUMP, jumps)
        self._keep_larger(EventColumn.GROWTH, growths)
        self._keep_first(norms, when, taken & ~torch.isfinite(total))
        self.recent = series[-WINDOW:]
        self.past = torch.stack((self.past[0] + finite.sum(), largest[-1], first[-1]))

    def _keep_larger(self, column: int, rows: Tensor) -> None:
        """Keep the row whose first number is largest, if it is larger than what is known."""
        best = rows.index_select(0, rows[:, 0].argmax().view(1))[0]
        known = self.events[column : column + rows.shape[1]]
        self.events[column : column + rows.shape[1]] = torch.where(best[0] > known[0], best, known)

    def _keep_first(self, norms: Tensor, when: Tensor, bad: Tensor) -> None:
        """Keep what is known of the first step that was taken with a gradient that is not finite."""
        where = bad.to(torch.uint8).argmax().view(1)
        row = norms.index_select(0, where)[0]
        ill = ~torch.isfinite(row)
        index = torch.arange(row.shape[0], device=row.device, dtype=row.dtype)
        found = torch.stack(
            (
                when.index_select(0, where)[0],
                torch.where(ill, index, math.inf).amin(),
                torch.where(ill, index, -1).amax(),
                ill.sum().to(row.dtype),
                (row != 0).sum().to(row.dtype),
            )
        )
        known = self.events[EventColumn.BAD_BATCH :]
        self.events[EventColumn.BAD_BATCH :] = torch.where(bad.any() & torch.isinf(known[0]), found, known)

    def state(self) -> Tensor:
        """What lasts from epoch to epoch, shape ``(WINDOW + 3,)``."""
        return torch.cat((self.recent, self.past))

    def load(self, state: Tensor) -> None:
        """Take up the :meth:`state` of an earlier run."""
        state = state.to(self.recent)
        self.recent, self.past = state[:WINDOW].clone(), state[WINDOW:].clone()

    def reset(self) -> None:
        """Start a new epoch."""
        self.events = empty_events(self.events.device, self.events.dtype)


def step_events(row: Sequence[float], names: Sequence[str], unzeroed: int = 0, wasted: int = 0) -> StepEvents:
    """Name the numbers of an optimizer's events.

    Args:
        row: The events as Python numbers.
        names: The parameters, in the order of the norms.
        unzeroed: Steps whose gradients had not been zeroed.
        wasted: Steps whose gradients were changed in vain.
    """
    jumped, grew = row[EventColumn.JUMP] > 0, row[EventColumn.GROWTH] > 0
    bad = math.isfinite(row[EventColumn.BAD_BATCH])
    ends = dict.fromkeys((int(row[EventColumn.BAD_FIRST]), int(row[EventColumn.BAD_LAST]))) if bad else ()
    return StepEvents(
        jump=row[EventColumn.JUMP] if jumped else math.nan,
        jump_sigmas=row[EventColumn.JUMP_SIGMAS] if jumped else math.nan,
        jump_norm=row[EventColumn.JUMP_NORM] if jumped else math.nan,
        jump_mean=row[EventColumn.JUMP_MEAN] if jumped else math.nan,
        jump_before=int(row[EventColumn.JUMP_BEFORE]),
        jump_batch=int(row[EventColumn.JUMP_BATCH]) if jumped else None,
        jump_parameter=names[int(row[EventColumn.JUMP_PARAMETER])] if jumped else "",
        growth=row[EventColumn.GROWTH] if grew else math.nan,
        growth_norm=row[EventColumn.GROWTH_NORM] if grew else math.nan,
        growth_batch=int(row[EventColumn.GROWTH_BATCH]) if grew else None,
        first_nonfinite_batch=int(row[EventColumn.BAD_BATCH]) if bad else None,
        first_nonfinite_parameters=tuple(names[index] for index in ends),
        nonfinite_share=row[EventColumn.BAD_COUNT] / max(row[EventColumn.BAD_OF], 1.0),
        unzeroed_steps=unzeroed,
        wasted_clips=wasted,
    )
