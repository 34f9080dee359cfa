"""The measured steps of an epoch, and their report: times of every layer, in milliseconds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.declare.plain import PlainReport
from lightning_hooks.profiling.clock import BACKWARD, FORWARD, OTHER, RECOMPUTE, Account

LIMIT = 512  # the largest number of steps of an epoch that are measured


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the milliseconds per step, over the measured steps.

    Attributes:
        mean: Mean.
        std: Population standard deviation.
        p50: Median.
        p95: 95th percentile, linearly interpolated.
    """

    mean: float
    std: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of one module per step, of all its calls, and the size of its output.

    *Self* time excludes selected modules inside the module; the self times of all modules and the time outside them add up to the
    step. *Total* time is from its call to its return, and in backward that of its part of the graph.

    Attributes:
        calls: Forward calls in a step, mean.
        recomputed_calls: Calls in a step by activation checkpointing during backward, mean.
        self_time: Forward, backward and recomputation together, without inner modules.
        total_time: The same with inner modules.
        forward_self: In forward, without inner modules.
        forward_total: In forward, with inner modules.
        backward_self: In backward, without inner modules and recomputation.
        backward_total: In backward, with inner modules, without recomputation.
        recompute_self: In recomputation, without inner modules.
        share: Mean self time over the step's mean, 0 to 1.
        output_bytes: Bytes of the tensors it returned in a step, mean.
        memory_bytes: Growth of the allocated device memory during its forward calls in one step, inner modules included: its output
            and the tensors saved for backward. None on the CPU, and if it was not read.
    """

    calls: float
    recomputed_calls: float
    self_time: Spread
    total_time: Spread
    forward_self: Spread
    forward_total: Spread
    backward_self: Spread
    backward_total: Spread
    recompute_self: Spread
    share: float
    output_bytes: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProfileReport(PlainReport):
    """Times of training steps, on this rank.

    ``forward_time + backward_time + other_time = step_time``, and ``step_time`` is the self times of all modules plus
    ``outside_forward``, ``outside_backward`` and ``other_time``. On the CPU the times exclude the profiler's own hooks.

    ``to_dict()`` gives plain JSON data, and ``from_dict()`` the report again.

    Attributes:
        epoch: The epoch, from 0.
        step: The trainer's ``global_step`` at its end.
        device: The device of the model, such as ``cpu`` or ``cuda:0``.
        sites: Module name to its times, in model order; only modules that were called.
        silent: Selected modules that were not called in a measured step, or run inside a compiled one.
        step_time: From the batch's start to its end.
        forward_time: Forward; recomputation is not in it.
        backward_time: Backward, recomputation included.
        other_time: The rest: optimizer, other callbacks, logging.
        outside_forward: Forward outside every selected module: the loss, functional code.
        outside_backward: Backward of the same.
        overhead: Mean host milliseconds per step in the profiler's own hooks.
        measured_steps: Training batches measured.
        batches: Training batches of the epoch.
    """

    epoch: int
    step: int
    device: str
    sites: dict[str, LayerTimes]
    silent: tuple[str, ...]
    step_time: Spread
    forward_time: Spread
    backward_time: Spread
    other_time: Spread
    outside_forward: Spread
    outside_backward: Spread
    overhead: float
    measured_steps: int
    batches: int


@dataclass(slots=True)
class Tally:
    """Totals of the calls of one site in one step.

    Attributes:
        calls: Forward calls.
        recomputed: Forward calls inside backward.
        output_bytes: Bytes of the returned tensors, in forward.
        memory_bytes: Growth of the allocated device memory; only in a step that reads it.
    """

    calls: int = 0
    recomputed: int = 0
    output_bytes: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class TracedStep:
    """The calls of a traced step.

    Attributes:
        tallies: Site to its totals; only called sites.
        reads_memory: Whether allocated memory was read at every call, which takes time.
        counts: Whether its times are in the report.
        accounts: Account to milliseconds.
        overhead: Host milliseconds spent in the profiler's own hooks.
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    reads_memory: bool = False
    counts: bool = True
    accounts: dict[Account, float] = field(default_factory=dict)
    overhead: float = 0.0


def profile_report(names: Sequence[str], steps: Sequence[TracedStep], memory: Mapping[int, int], **about: Any) -> ProfileReport:
    """Return the report of measured steps.

    Args:
        names: The sites.
        steps: The steps.
        memory: Site to the growth of the allocated device memory during its calls.
        **about: The ``epoch``, ``step``, ``device`` and ``batches`` of the report.
    """
    accounts = list(dict.fromkeys(account for traced in steps for account in traced.accounts))
    times = {account: np.array([traced.accounts.get(account, 0.0) for traced in steps]) for account in accounts}
    n = len(steps)

    own: dict[int | None, list[Account]] = defaultdict(list)  # by site
    inside: dict[int, list[Account]] = defaultdict(list)  # by site: its own, and those of inner modules
    for account in accounts:
        own[account[0][-1] if account[0] else None].append(account)
        for site in set(account[0]):
            inside[site].append(account)

    def spread(of: Iterable[Account], *phases: int) -> Spread:
        return _spread(sum((times[account] for account in of if not phases or account[1] in phases), np.zeros(n)))

    step_time = spread(accounts)
    sites: dict[str, LayerTimes] = {}
    for site, name in enumerate(names):
        found = [traced.tallies[site] for traced in steps if site in traced.tallies]
        if found:
            self_time = spread(own[site])
            sites[name] = LayerTimes(
                calls=sum(tally.calls for tally in found) / n,
                recomputed_calls=sum(tally.recomputed for tally in found) / n,
                self_time=self_time,
                total_time=spread(inside[site]),
                forward_self=spread(own[site], FORWARD),
                forward_total=spread(inside[site], FORWARD),
                backward_self=spread(own[site], BACKWARD),
                backward_total=spread(inside[site], BACKWARD),
                recompute_self=spread(own[site], RECOMPUTE),
                share=self_time.mean / step_time.mean,
                output_bytes=sum(tally.output_bytes for tally in found) / n,
                memory_bytes=memory.get(site),
            )
    return ProfileReport(
        **about,
        sites=sites,
        silent=tuple(name for name in names if name not in sites),
        step_time=step_time,
        forward_time=spread(accounts, FORWARD),
        backward_time=spread(accounts, BACKWARD, RECOMPUTE),
        other_time=spread(accounts, OTHER),
        outside_forward=spread(own[None], FORWARD),
        outside_backward=spread(own[None], BACKWARD, RECOMPUTE),
        overhead=float(np.mean([traced.overhead for traced in steps])) if steps else math.nan,
        measured_steps=n,
    )


def _spread(values: NDArray[np.float64]) -> Spread:
    if not values.size:
        return Spread(math.nan, math.nan, math.nan, math.nan)
    p50, p95 = np.percentile(values, (50, 95))
    return Spread(float(values.mean()), float(values.std()), float(p50), float(p95))
