"""Clocks that divide a step's time among accounts: the host's, and a CUDA stream's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class StepTimes:
    """One step, divided.

    Attributes:
        accounts: Account to milliseconds; together they are the step.
        overhead: Milliseconds of host time that the profiler's own hooks took.
    """

    accounts: dict[int, float]
    overhead: float


class StepClock(Protocol):
    """Every moment of a step belongs to one account; :meth:`switch` says which from now on.

    What happens between :meth:`pause` and :meth:`resume` is the profiler's own work.
    """

    def begin(self, account: int) -> None:
        """A step begins, on ``account``."""

    def pause(self) -> None:
        """Our own work begins."""

    def switch(self, account: int) -> None:
        """From now on time goes to ``account``."""

    def resume(self) -> None:
        """Our own work is over."""

    def end(self) -> None:
        """The step is over."""

    def abandon(self) -> None:
        """The step will not end: forget it."""

    def take(self, wait: bool) -> list[StepTimes]:
        """Hand over the steps that are over; with ``wait`` all of them, else those whose times can be had at once."""

    def allocated(self) -> int | None:
        """Bytes allocated on the device now; None where nobody counts them."""


class HostClock:
    """Host time, for models on the CPU. It stands still while the profiler itself works."""

    def __init__(self) -> None:
        self._account = 0
        self._last = self._overhead = 0
        self._times: dict[int, int] = {}
        self._done: list[StepTimes] = []

    def begin(self, account: int) -> None:
        """A step begins."""
        self._account, self._overhead, self._times = account, 0, {}
        self._last = time.perf_counter_ns()

    def pause(self) -> None:
        """Enter what has passed."""
        now = time.perf_counter_ns()
        self._times[self._account] = self._times.get(self._account, 0) + now - self._last
        self._last = now

    def switch(self, account: int) -> None:
        """Change the account."""
        self._account = account

    def resume(self) -> None:
        """Leave out what has passed."""
        now = time.perf_counter_ns()
        self._overhead += now - self._last
        self._last = now

    def end(self) -> None:
        """The step is over."""
        self.pause()
        self._done.append(StepTimes({account: ns / 1e6 for account, ns in self._times.items()}, self._overhead / 1e6))

    def abandon(self) -> None:
        """Forget the step."""
        self._times = {}

    def take(self, wait: bool) -> list[StepTimes]:
        """All steps: host times are known at once."""
        done, self._done = self._done, []
        return done

    def allocated(self) -> int | None:
        """Nobody counts the host's."""
        return None


class CudaClock:
    """Stream time, for models on a CUDA device: an event wherever the account changes, and no wait for any of them.

    An event is read when the device has passed it: between steps those that it has (asked, not waited for), and the rest at the
    epoch's end. Read events are used again, so memory holds those of the few steps that the host is ahead.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._account = 0
        self._began = self._overhead = 0
        self._marks: list[tuple[torch.cuda.Event, int]] = []  # from this event on time goes to the account
        self._over: list[tuple[list[tuple[torch.cuda.Event, int]], int]] = []
        self._free: list[torch.cuda.Event] = []

    def begin(self, account: int) -> None:
        """A step begins."""
        self._overhead = 0
        self._marks = []
        self._mark(account)

    def _mark(self, account: int) -> None:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._account = account
        self._marks.append((event, account))

    def pause(self) -> None:
        """The device works on; only the host's time is noted."""
        self._began = time.perf_counter_ns()

    def switch(self, account: int) -> None:
        """Put an event into the stream."""
        if account != self._account:
            self._mark(account)

    def resume(self) -> None:
        """Note the host's time."""
        self._overhead += time.perf_counter_ns() - self._began

    def end(self) -> None:
        """Put in the last event."""
        self._mark(self._account)
        self._over.append((self._marks, self._overhead))
        self._marks = []

    def abandon(self) -> None:
        """Forget the step."""
        self._marks = []

    def take(self, wait: bool) -> list[StepTimes]:
        """Read the steps that the device has finished, or with ``wait`` all."""
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
        """Bytes that PyTorch's allocator has given out; no wait for the device."""
        return torch.cuda.memory_allocated(self._device)


def clock_for(device: torch.device) -> StepClock:
    """Return the clock of a device.

    Raises:
        RuntimeError: If there is none that can be read without waiting at every layer.
    """
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise RuntimeError(
        f"Layers can be timed on 'cpu' and 'cuda' devices; the model is on {str(device)!r}. Profile it on one of those, or use "
        "that device's own profiler."
    )
