"""Which batches one member samples: every so many, or as many as a share of the step's time allows, by what they cost."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import Gate, Meter

PROBES = 2  # sampled batches after the first (which warms up) from which the first stride is found

KEPT = 1000  # batches of a window, sampled ones and others each, whose times are kept: what it costs is the medians of them


def stride_within(budget: float, costs: list[tuple[float, float, float]], at_least: int) -> int | None:
    """Every how many steps to sample so that several monitors together stay within a share of the step's time.

    Args:
        budget: The share, as 0.01 for one in a hundred.
        costs: What :meth:`Sampling.costs` says of each.
        at_least: The smallest stride that is wanted.

    Returns:
        The stride; None where what they add to every batch is over the budget already.
    """
    plain = statistics.median([cost[0] for cost in costs])
    left = budget * plain - sum(cost[1] for cost in costs)
    more = sum(cost[2] for cost in costs)
    return None if left <= 0 else max(at_least, math.ceil(more / left))


class Sampling:
    """The gate of one member, opened every ``stride`` batches, and its share of the time that training takes. No host sync.

    On the CPU the time inside its hooks is summed. On an accelerator, where a hook returns before its kernels ran, and under
    ``torch.compile``, where hooks are part of the graph, sampled batches are compared with the others: their median durations, by
    events on the device's stream, which are looked at only once they have happened.

    Args:
        name: The monitor's, for messages.
        every: ``every_n_steps``.
        budget: ``max_overhead``.
        every_step: Whether it does the same at a step that is not sampled.

    Attributes:
        stride: What is in force.
        decided: Whether that is the stride of this window.
        meter: What its hooks take in the batch under way; None where batches are compared.
        sampled: Seconds that each sampled batch of the window took, and those of them inside hooks.
        others: The same of the others.
    """

    def __init__(self, name: str, every: int, budget: float | None, every_step: bool) -> None:
        self.name, self.every, self.budget, self.every_step = name, every, budget, every_step
        self.stride, self.gate = every, Gate()
        self.start(torch.device("cpu"), inside=False)

    def start(self, device: torch.device, inside: bool) -> None:
        """A run starts, in which time ``inside`` the hooks can be measured or, as under ``torch.compile``, cannot."""
        self.meter = Meter() if inside and device.type == "cpu" else None
        self.decided = self.budget is None
        self._found = False  # a stride was found
        self._windows = 0  # that have ended
        self._last: tuple[float, float, float] | None = None  # the costs of the last one
        self._begin_window()

    def _begin_window(self) -> None:
        self.sampled: list[tuple[float, float]] = []
        self.others: list[tuple[float, float]] = []
        self._pending: list[tuple[bool, Any, Any]] = []
        self.batches = self.sampled_batches = 0

    def wait_for(self, sampled: bool, begin: Any, end: Any) -> None:
        """A training batch ends on CUDA; the time between its events is known once they have happened."""
        self._pending.append((sampled, begin, end))
        while self._pending and self._pending[0][2].query():
            was_sampled, begin, end = self._pending.pop(0)
            (self.sampled if was_sampled else self.others).append((begin.elapsed_time(end) / 1e3, 0.0))

    def costs(self) -> tuple[float, float, float] | None:
        """Seconds of a batch without the monitor, what it adds to every batch, and what it adds to a sampled one on top.

        None while it is not known, in this window or the last one: there must be a sampled batch, and where batches are compared
        several, and others too.
        """
        return self._costs() or self._last

    def _costs(self) -> tuple[float, float, float] | None:
        if self.meter is None:
            if len(self.sampled) < 2 or not self.others:
                return None
            plain = statistics.median(taken for taken, _ in self.others)
            return plain, 0.0, max(statistics.median(taken for taken, _ in self.sampled[1:]) - plain, 0.0)
        sampled = self.sampled[1:] or self.sampled  # the first one of a fit warms up and is left out where there are more
        if not sampled:
            return None
        plain = statistics.median(taken - inside for taken, inside in self.others or sampled)
        own = statistics.median(inside for _, inside in sampled)
        if self.every_step:
            return plain, own, 0.0
        always = statistics.median(inside for _, inside in self.others) if self.others else 0.0
        return plain, always, max(own - always, 0.0)

    def choose(self, everyone: Sequence[Sampling], agreed: Callable[[int], int]) -> None:
        """Choose the stride by what all members cost: once soon after training starts, and again at each window's start.

        Within a window it stays, so that the sample is an even one of all its batches (but for the two batches of the first
        window by which the first stride was found). Ranks agree on it by ``agreed``.
        """
        assert self.budget is not None
        if not self._found and len(self.sampled) <= PROBES and not self._windows:
            return
        costs = [cost for cost in (member.costs() for member in everyone) if cost is not None]
        stride = agreed(stride_within(self.budget, costs, self.every) or sys.maxsize if costs else 0)
        if not stride:
            return
        if stride == sys.maxsize and not self._found:
            warn(
                f"{self.name}: max_overhead={self.budget} is less than what the monitors do at every step, whatever the sampling "
                "(clip events are counted at every one). It now samples the first batch of each epoch only; leave out "
                "GradientClipMonitor, or allow more."
            )
        self.stride = stride
        self._found = self.decided = True

    def window_end(self, batches: int) -> tuple[float | None, int]:
        """A window ends; return what the member cost, as a share of the batches' time, and the stride that was in force."""
        costs, share = self._costs(), None
        if costs is not None and costs[0] > 0:
            plain, always, more = costs
            share = (always * self.batches + more * self.sampled_batches) / (plain * self.batches)
        stride = self.stride if self.stride < sys.maxsize else batches  # the first batch only
        self._last = costs or self._last
        self._windows += 1
        self._begin_window()
        self.decided = self.budget is None
        return share, stride
