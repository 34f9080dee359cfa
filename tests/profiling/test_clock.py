"""The clocks: what they divide, and that the CUDA one waits for nothing (on events that are played)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

from lightning_hooks.profiling import clock as clocks
from lightning_hooks.profiling.clock import CudaClock, HostClock


def test_the_host_clock_stands_still_while_the_profiler_works(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0, 10, 13, 33, 34, 40])
    monkeypatch.setattr(clocks, "perf_counter_ns", lambda: next(times) * 1_000_000)
    clock = HostClock()
    clock.begin(1)
    clock.pause()  # at 10
    clock.switch(2)
    clock.resume()  # at 13
    clock.pause()  # at 33
    clock.switch(1)
    clock.resume()  # at 34
    clock.end()  # at 40
    (step,) = clock.take(wait=False)
    assert step == ({1: 10 + 6, 2: 20}, 3 + 1)
    assert clock.take(wait=True) == []
    assert clock.allocated() is None


class Event:
    """A CUDA event on a stream whose device is ``done`` up to some millisecond."""

    now: ClassVar[float] = 0.0
    done: ClassVar[float] = 0.0
    made: ClassVar[int] = 0
    waits: ClassVar[int] = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1

    def record(self, stream: Any) -> None:
        self.at = Event.now

    def query(self) -> bool:
        return self.at <= Event.done

    def synchronize(self) -> None:
        Event.waits += 1
        Event.done = max(Event.done, self.at)

    def elapsed_time(self, other: Event) -> float:
        assert self.query(), "read before the device passed it"
        assert other.query(), "read before the device passed it"
        return other.at - self.at


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> CudaClock:
    Event.now = Event.done = Event.made = Event.waits = 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 4096)
    return CudaClock(torch.device("cuda", 0))


def step(clock: CudaClock) -> None:
    clock.begin(1)
    for account, until in ((2, 10), (2, 15), (1, 40), (3, 41)):
        Event.now = (Event.now // 100) * 100 + until
        clock.pause()
        clock.switch(account)
        clock.resume()
    Event.now += 9
    clock.end()
    Event.now += 50


def test_the_cuda_clock_reads_steps_that_the_device_has_finished_and_waits_for_none(cuda: CudaClock) -> None:
    for _ in range(3):
        step(cuda)
        Event.done = Event.now - 100  # the device is a step behind
        for accounts, _ in cuda.take(wait=False):
            assert accounts == {1: 10 + 1, 2: 30, 3: 9}
    assert Event.waits == 0
    assert Event.made == 10  # two steps' worth, used again
    ((accounts, overhead),) = cuda.take(wait=True)
    assert accounts == {1: 11, 2: 30, 3: 9}
    assert Event.waits == 1
    assert overhead >= 0
    assert cuda.allocated() == 4096
