"""Events at single optimizer steps: the largest jump of the gradient norm, its growth, the first norm that is not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

WINDOW = 128  # number of previous steps that a step is compared with, as in OLMo-core's SkipStepOptimizer

FIRST_STEPS = 8  # number of first steps of a training that define the usual size of its gradients


class EventColumn(IntEnum):
    """The columns of an optimizer's events."""

    JUMP = 0  # largest ratio of a step's norm to the largest norm before it; 0 while there is none
    JUMP_SIGMAS = 1  # its distance from the mean of the previous window, in standard deviations
    JUMP_NORM = 2
    JUMP_MEAN = 3  # of the window
    JUMP_BEFORE = 4  # number of steps in the window
    JUMP_BATCH = 5
    JUMP_PARAMETER = 6  # the parameter with the largest share in it
    GROWTH = 7  # largest ratio of a norm to the largest of the training's first steps
    GROWTH_NORM = 8
    GROWTH_BATCH = 9
    BAD_BATCH = 10  # first batch whose step had a gradient that is not finite; +inf if none
    BAD_FIRST = 11  # of that step: the first parameter, in the model's order, that is not finite
    BAD_LAST = 12  # the last one
    BAD_COUNT = 13
    BAD_OF = 14  # number of parameters whose gradient was not zero


N_EVENT_COLUMNS = len(EventColumn)


@dataclass(frozen=True, slots=True)
class StepEvents:
    """Events at single steps of one optimizer in an epoch. Every step counts, whatever the sampling.

    Norms are total L2 norms over the optimizer's gradients before clipping. Batches are training batches of the epoch, from 0.

    Attributes:
        jump: The largest ratio of a step's norm to the largest norm of all previous steps of the training; NaN without any.
        jump_sigmas: How many standard deviations that step's norm was above the mean of the ``WINDOW`` steps before it; infinite
            where these were all equal.
        jump_norm: That step's norm.
        jump_mean: The mean norm of those steps.
        jump_before: Their number, at most ``WINDOW``.
        jump_batch: Its batch.
        jump_parameter: The parameter with the largest gradient norm at that step.
        growth: The largest ratio of a step's norm to the largest norm of the training's first ``FIRST_STEPS`` steps.
        growth_norm: That step's norm.
        growth_batch: Its batch.
        first_nonfinite_batch: The first batch whose step was taken with a NaN or infinite gradient; None without any.
        first_nonfinite_parameters: At that step, the first and the last parameter, in the model's order, whose gradient was not
            finite; empty without any.
        nonfinite_share: At that step, the share of parameters with a nonzero gradient whose gradient was not finite, 0 to 1.
        unzeroed_steps: Steps whose gradients were not zeroed after the previous step.
        wasted_clips: Steps whose gradients were changed after the step and then zeroed: clipping too late, or too early.
        discarded_batches: Batches whose gradients were removed before the next batch's were computed, without a step; under manual
            optimisation.
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
    discarded_batches: int = 0


class NormHistory:
    """Compares the norm of each step with those of the previous steps, many steps at a time, on the device. No host sync.

    The history of norms continues from epoch to epoch; the events are those of one epoch.

    Attributes:
        events: The events of the epoch, shape ``(n_event_columns,)``.
    """

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self.recent = torch.full((WINDOW,), math.nan, device=device, dtype=dtype)
        self.past = torch.zeros(3, device=device, dtype=dtype)  # steps seen, the largest norm, the largest of the first steps
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self.events = self.past.new_zeros(N_EVENT_COLUMNS)
        self.events[EventColumn.BAD_BATCH] = math.inf

    def read(self, norms: Tensor, batches: Sequence[int], taken: Tensor) -> None:
        """Add steps.

        Args:
            norms: Norms of the parameters' gradients before clipping, shape ``(k, n)``.
            batches: The training batch of each step.
            taken: Which steps were taken, boolean, shape ``(k,)``; the others are ignored.
        """
        steps = norms.shape[0]
        when = torch.tensor(batches, dtype=norms.dtype).to(norms.device, non_blocking=True)
        total = torch.linalg.vector_norm(norms, dim=1)
        finite = taken & torch.isfinite(total)
        series = torch.cat((self.recent, torch.where(finite, total, math.nan)))
        before = series.unfold(0, WINDOW, 1)[:steps]  # (k, WINDOW): the steps before each
        counted = torch.isfinite(before)
        count = counted.sum(1)
        mean = torch.where(counted, before, 0).sum(1) / count.clamp(min=1)
        variance = torch.where(counted, (before - mean[:, None]) ** 2, 0).sum(1) / (count - 1).clamp(min=1)
        seen = self.past[0] + torch.cumsum(finite, 0) - finite.to(norms.dtype)
        kept = torch.where(finite, total, 0)
        largest = torch.cummax(torch.cat((self.past[1:2], kept)), 0).values
        first = torch.cummax(torch.cat((self.past[2:3], torch.where(seen < FIRST_STEPS, kept, 0))), 0).values
        # A norm of 0, as of a part that does not train yet, is no reference.
        jump = torch.where(finite & (largest[:-1] > 0), total / largest[:-1], 0)
        growth = torch.where(finite & (seen >= FIRST_STEPS) & (first[1:] > 0), total / first[1:], 0)
        sigmas = (total - mean) / variance.sqrt()  # infinite where the previous norms are all equal
        parameter = norms.nan_to_num(0.0, 0.0, 0.0).argmax(1)
        self._keep_larger(EventColumn.JUMP, torch.stack((jump, sigmas, total, mean, count, when, parameter), 1).to(norms.dtype))
        self._keep_larger(EventColumn.GROWTH, torch.stack((growth, total, when), 1))
        self._keep_first(norms, when, taken & ~torch.isfinite(total))
        self.recent = series[-WINDOW:]
        self.past = torch.stack((self.past[0] + finite.sum(), largest[-1], first[-1]))

    def _keep_larger(self, column: int, rows: Tensor) -> None:
        """Keep the row with the largest first number, if it is larger than the stored one."""
        best = rows.index_select(0, rows[:, 0].argmax().view(1))[0]
        known = self.events[column : column + rows.shape[1]]
        known.copy_(torch.where(best[0] > known[0], best, known))

    def _keep_first(self, norms: Tensor, when: Tensor, bad: Tensor) -> None:
        """Keep the first step that was taken with a gradient that is not finite."""
        where = bad.to(torch.uint8).argmax().view(1)
        row = norms.index_select(0, where)[0]
        nonfinite = ~torch.isfinite(row)
        index = torch.arange(row.shape[0], device=row.device, dtype=row.dtype)
        ends = torch.where(nonfinite, index, math.inf).amin(), torch.where(nonfinite, index, -1).amax()
        counts = nonfinite.sum().to(row.dtype), (row != 0).sum().to(row.dtype)
        found = torch.stack((when.index_select(0, where)[0], *ends, *counts))
        known = self.events[EventColumn.BAD_BATCH :]
        known.copy_(torch.where(bad.any() & torch.isinf(known[0]), found, known))

    def state(self) -> Tensor:
        """Return the history that continues from epoch to epoch, shape ``(WINDOW + 3,)``."""
        return torch.cat((self.recent, self.past))

    def load(self, state: Tensor) -> None:
        """Restore the :meth:`state` of an earlier run."""
        state = state.to(self.recent)
        self.recent, self.past = state[:WINDOW].clone(), state[WINDOW:].clone()


def step_events(row: Sequence[float], names: Sequence[str], unzeroed: int = 0, wasted: int = 0, discarded: int = 0) -> StepEvents:
    """Return the report of an optimizer's events, as Python numbers; ``names`` are the parameters in the order of the norms."""
    of = dict(zip(EventColumn.__members__, row, strict=True))
    found: dict[str, Any] = {"jump_before": int(of["JUMP_BEFORE"])}
    if of["JUMP"] > 0:
        found |= {name: of[name.upper()] for name in ("jump", "jump_sigmas", "jump_norm", "jump_mean")}
        found |= {"jump_batch": int(of["JUMP_BATCH"]), "jump_parameter": names[int(of["JUMP_PARAMETER"])]}
    if of["GROWTH"] > 0:
        found |= {"growth": of["GROWTH"], "growth_norm": of["GROWTH_NORM"], "growth_batch": int(of["GROWTH_BATCH"])}
    if math.isfinite(of["BAD_BATCH"]):
        ends = dict.fromkeys((int(of["BAD_FIRST"]), int(of["BAD_LAST"])))
        found |= {"first_nonfinite_batch": int(of["BAD_BATCH"]), "first_nonfinite_parameters": tuple(names[end] for end in ends)}
    return StepEvents(
        **found,
        nonfinite_share=of["BAD_COUNT"] / max(of["BAD_OF"], 1.0),
        unzeroed_steps=unzeroed,
        wasted_clips=wasted,
        discarded_batches=discarded,
    )
