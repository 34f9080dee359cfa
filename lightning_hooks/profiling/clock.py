"""Clocks that assign the time of a step to accounts, by host time or by CUDA events."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The times of one step.

    Attributes:
        accounts: Account to milliseconds; their sum is the time of the step.
        overhead: Host milliseconds spent in the profiler's own hooks.
    """

    accounts: dict[int, float]
    overhead: float


class StepClock(Protocol):
    """Assigns each moment of a step to one account, which :meth:`switch` changes.

    Between :meth:`pause` and :meth:`resume` the profiler itself works.
    """

    def begin(self, account: int) -> None:
        """Begin a step on ``account``."""

    def pause(self) -> None:
        """Begin the profiler's own work."""

    def switch(self, account: int) -> None:
        """Assign the time from now on to ``account``."""

    def resume(self) -> None:
        """End the profiler's own work."""

    def end(self) -> None:
        """End the step."""

    def abandon(self) -> None:
        """Discard the step."""

    def take(self, wait: bool) -> list[StepTimes]:
        """Return the steps that have ended and remove them: with ``wait`` all, else those whose times are known without a sync."""

    def allocated(self) -> int | None:
        """Return the bytes allocated on the device; None where they are not counted."""


class HostClock:
    """Host time, for models on the CPU. It excludes the profiler's own work."""

    def __init__(self) -> None:
        self._account = 0
        self._last = self._overhead = 0
        self._times: dict[int, int] = {}
        self._done: list[StepTimes] = []

    def begin(self, account: int) -> None:
        """Begin a step."""
        self._account, self._overhead, self._times = account, 0, {}
        self._last = time.perf_counter_ns()

    def pause(self) -> None:
        """Add the time since the last change to the account."""
        now = time.perf_counter_ns()
        self._times[self._account] = self._times.get(self._account, 0) + now - self._last
        self._last = now

    def switch(self, account: int) -> None:
        """Change the account."""
        self._account = account

    def resume(self) -> None:
        """Add the time since the pause to the overhead."""
        now = time.perf_counter_ns()
        self._overhead += now - self._last
        self._last = now

    def end(self) -> None:
        """End the step."""
        self.pause()
        self._done.append(StepTimes({account: ns / 1e6 for account, ns in self._times.items()}, self._overhead / 1e6))

    def abandon(self) -> None:
        """Discard the step."""
        self._times = {}

    def take(self, wait: bool) -> list[StepTimes]:
        """Return all steps."""
        done, self._done = self._done, []
        return done

    def allocated(self) -> int | None:
        """Return None: host memory is not counted."""
        return None


class CudaClock:
    """Stream time, for models on a CUDA device: records an event at each change of account, without a host sync.

    Events that the device has passed are read between steps, the rest at the end of the epoch. They are used again, so that only
    the events of the steps that the host is ahead are in memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._account = 0
        self._began = self._overhead = 0
        self._marks: list[tuple[torch.cuda.Event, int]] = []  # the account from this event on
        self._over: list[tuple[list[tuple[torch.cuda.Event, int]], int]] = []
        self._free: list[torch.cuda.Event] = []

    def begin(self, account: int) -> None:
        """Begin a step."""
        self._overhead = 0
        self._marks = []
        self._mark(account)

    def _mark(self, account: int) -> None:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._account = account
        self._marks.append((event, account))

    def pause(self) -> None:
        """Start to measure the overhead; the device continues."""
        self._began = time.perf_counter_ns()

    def switch(self, account: int) -> None:
        """Record an event."""
        if account != self._account:
            self._mark(account)

    def resume(self) -> None:
        """Add the host time since the pause to the overhead."""
        self._overhead += time.perf_counter_ns() - self._began

    def end(self) -> None:
        """Record the last event."""
        self._mark(self._account)
        self._over.append((self._marks, self._overhead))
        self._marks = []

    def abandon(self) -> None:
        """Discard the step."""
        self._marks = []

    def take(self, wait: bool) -> list[StepTimes]:
        """Return the steps that the device has finished, or with ``wait`` all."""
        done = []
        while self._over:
            marks, overhead = self._over[0]
            if wait:
                marks[-1][0].synchronize()
            elif not marks[-1][0].query():  # type: ignore[no-untyped-call]
                break
            self._over.pop(0)
            accounts: dict[int, float] = {}
            for (start, account), (stop, _) in pairwise(marks):
                accounts[account] = accounts.get(account, 0.0) + start.elapsed_time(stop)
            self._free.extend(event for event, _ in marks)
            done.append(StepTimes(accounts, overhead / 1e6))
        return done

    def allocated(self) -> int | None:
        """Return the bytes that PyTorch's allocator has in use; no host sync."""
        return torch.cuda.memory_allocated(self._device)


def clock_for(device: torch.device) -> StepClock:
    """Return the clock of a device.

    Raises:
        RuntimeError: If the device is neither a CPU nor a CUDA device.
    """
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise RuntimeError(
        f"Layers can be timed on 'cpu' and 'cuda' devices; the model is on {str(device)!r}. Profile it on one of those, or use "
        "that device's own profiler."
    )
