"""Clocks that assign the time of a step to accounts, by host time or by CUDA events."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from typing_extensions import override


class StepTimes(NamedTuple):
    """The times of one step.

    Attributes:
        accounts: Account to milliseconds; their sum is the time of the step.
        overhead: Host milliseconds spent in the profiler's own hooks.
    """

    accounts: dict[Any, float]
    overhead: float


class HostClock:
    """Assigns each moment of a step to one account, which :meth:`switch` changes, by host time, for models on the CPU.

    The profiler's own work, between :meth:`pause` and :meth:`resume`, is excluded.
    """

    def __init__(self) -> None:
        self._account: Any = None
        self._last = self._overhead = 0
        self._times: dict[Any, float] = defaultdict(float)
        self._done: list[StepTimes] = []

    def begin(self, account: Any) -> None:
        """Begin a step on ``account``."""
        self._account, self._overhead, self._times = account, 0, defaultdict(float)
        self._last = time.perf_counter_ns()

    def pause(self) -> None:
        """Begin the profiler's own work."""
        now = time.perf_counter_ns()
        self._times[self._account] += now - self._last
        self._last = now

    def switch(self, account: Any) -> None:
        """Assign the time from now on to ``account``."""
        self._account = account

    def resume(self) -> None:
        """End the profiler's own work."""
        now = time.perf_counter_ns()
        self._overhead += now - self._last
        self._last = now

    def end(self) -> None:
        """End the step."""
        self.pause()
        self._done.append(StepTimes({account: ns / 1e6 for account, ns in self._times.items()}, self._overhead / 1e6))

    def take(self, wait: bool) -> list[StepTimes]:
        """Return the steps that have ended and remove them: with ``wait`` all, else those whose times are known without a sync."""
        done, self._done = self._done, []
        return done

    def allocated(self) -> int | None:
        """Return the bytes allocated on the device; None where they are not counted, as on the host."""
        return None


class CudaClock(HostClock):
    """Assigns stream time, for models on a CUDA device: records an event at each change of account, without a host sync.

    Events that the device has passed are read between steps, the rest at the end of the epoch. They are used again, so that only
    the events of the steps that the host is ahead are in memory.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._marks: list[tuple[torch.cuda.Event, Any]] = []  # the account from this event on
        self._over: list[tuple[list[tuple[torch.cuda.Event, Any]], int]] = []
        self._free: list[torch.cuda.Event] = []

    @override
    def begin(self, account: Any) -> None:
        self._overhead, self._marks = 0, []
        self._mark(account)

    def _mark(self, account: Any) -> None:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._account = account
        self._marks.append((event, account))

    @override
    def pause(self) -> None:
        self._last = time.perf_counter_ns()  # of the overhead; the device continues

    @override
    def switch(self, account: Any) -> None:
        if account != self._account:
            self._mark(account)

    @override
    def end(self) -> None:
        self._mark(self._account)
        self._over.append((self._marks, self._overhead))

    @override
    def take(self, wait: bool) -> list[StepTimes]:
        done = []
        while self._over:
            marks, overhead = self._over[0]
            if wait:
                marks[-1][0].synchronize()
            elif not marks[-1][0].query():  # type: ignore[no-untyped-call]
                break
            self._over.pop(0)
            accounts: dict[Any, float] = defaultdict(float)
            for (start, account), (stop, _) in pairwise(marks):
                accounts[account] += start.elapsed_time(stop)
            self._free.extend(event for event, _ in marks)
            done.append(StepTimes(dict(accounts), overhead / 1e6))
        return done

    @override
    def allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self._device)


def clock_for(device: torch.device) -> HostClock:
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
