"""Clocks that assign the time of a step to accounts: places in the tree of calls, by host time or by CUDA events."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from time import perf_counter_ns
from typing import Any, TypeAlias

import torch
from typing_extensions import override

# What a step is doing; RECOMPUTE is forward again, inside backward (activation checkpointing), OTHER the optimizer, callbacks and
# logging.
FORWARD, BACKWARD, RECOMPUTE, OTHER = range(4)

# A place in the tree of calls: a site after those whose calls contain it. A module called from two others has two places, so that
# its time counts for its caller.
Place: TypeAlias = tuple[int, ...]

ROOT: Place = ()  # the place outside every module

Account: TypeAlias = tuple[Place, int]  # what time is assigned to: a place, and a phase

# AccumulateGrad nodes, which parameters keep from step to step, all have this number. The engine runs one right after the
# node that passes it a gradient, so its time is assigned to that node's module without a hook.
_ACCUMULATE_GRAD = 2**64 - 1


class _Lane:
    """The forward passes of one thread in this step: autograd numbers the nodes of each thread in the order of their creation."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.places: list[Place] = []  # from starts[i] on, nodes are created at places[i]
        self.seen: set[int] = {_ACCUMULATE_GRAD}
        self.move(ROOT)

    def move(self, place: Place) -> None:
        # The sequence numbers of nodes have no public name; torch.autograd.profiler and the compiler match forward and backward
        # operations by them.
        self.starts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self.places.append(place)


class NodeMap:
    """Hooks the nodes of a step's graph, each by ``hook_for`` the place in the call tree that created it.

    Module backward hooks do not support in-place operations and outputs that are not tensors. Hooks of nodes do: a node keeps its
    number when its tensor changes. No reference to a node is kept, so graphs are freed as usual.
    """

    def __init__(self, hook_for: Callable[[Place], Callable[..., Any]]) -> None:
        self._hook_for = hook_for
        self.clear()

    def clear(self) -> None:
        """Start a new step."""
        self._lanes: dict[int, _Lane] = defaultdict(_Lane)  # by thread
        self.move(ROOT)

    def move(self, place: Place) -> None:
        """Assign the nodes that this thread creates from now on to ``place``."""
        self._lanes[threading.get_ident()].move(place)

    def claim(self, nodes: Iterable[Any]) -> None:
        """Hook ``nodes``, the ``grad_fn`` of tensors or None, and the nodes of this step before them, each once."""
        lane = self._lanes[threading.get_ident()]
        waiting = [node for node in nodes if node is not None]
        while waiting:
            node = waiting.pop()
            number = node._sequence_nr()
            if number in lane.seen or number < lane.starts[0]:
                continue
            lane.seen.add(number)
            node.register_prehook(self._hook_for(lane.places[bisect_right(lane.starts, number) - 1]))
            waiting.extend(following for following, _ in node.next_functions if following is not None)


class HostClock:
    """Assigns each moment of a step to one account, which :meth:`switch` changes, by host time, for models on the CPU.

    The profiler's own work, between :meth:`pause` and :meth:`resume`, is excluded.
    """

    def __init__(self) -> None:
        self._paused_at = self._overhead = 0  # nanoseconds
        self._marks: list[tuple[Any, Any]] = []  # (moment, the account from then on), of the step under way
        self._ended: list[tuple[list[tuple[Any, Any]], int]] = []  # marks and overhead of the steps before

    def begin(self, account: Any) -> None:
        """Begin a step on ``account``."""
        self._overhead, self._marks = 0, []
        self.pause()
        self._mark(account)

    def pause(self) -> None:
        """Begin the profiler's own work."""
        self._paused_at = perf_counter_ns()

    def switch(self, account: Any) -> None:
        """Assign the time from the pause on to ``account``."""
        if account != self._marks[-1][1]:
            self._mark(account)

    def resume(self) -> None:
        """End the profiler's own work."""
        self._overhead += perf_counter_ns() - self._paused_at

    def end(self) -> None:
        """End the step."""
        self.pause()
        self._mark(self._marks[-1][1])
        self._ended.append((self._marks, self._overhead))

    def take(self, wait: bool) -> list[tuple[dict[Any, float], float]]:
        """Remove the steps that have ended, with ``wait`` all, else those whose times are known without a sync.

        Returns:
            Of each its milliseconds by account, whose sum is the time of the step, and those spent in the profiler's own hooks.
        """
        done = []
        while self._ended and self._is_over(self._ended[0][0][-1][0], wait):
            marks, overhead = self._ended.pop(0)
            accounts: dict[Any, float] = defaultdict(float)
            for (start, account), (stop, _) in pairwise(marks):
                accounts[account] += self._milliseconds(start, stop)
            self._release(moment for moment, _ in marks)
            done.append((dict(accounts), overhead / 1e6))
        return done

    def allocated(self) -> int | None:
        """Return the bytes allocated on the device; None where they are not counted, as on the host."""
        return None

    def _mark(self, account: Any) -> None:
        self._marks.append((self._moment(), account))

    def _moment(self) -> Any:
        return self._paused_at - self._overhead

    def _milliseconds(self, start: Any, stop: Any) -> float:
        return float(stop - start) / 1e6

    def _is_over(self, moment: Any, wait: bool) -> bool:
        """Whether the device has passed a moment; with ``wait`` after waiting for it."""
        return True

    def _release(self, moments: Iterable[Any]) -> None:
        """Moments that are not needed any more."""


class CudaClock(HostClock):
    """Assigns stream time, for models on a CUDA device: records an event at each change of account, without a host sync.

    Events that the device has passed are read between steps, the rest at the end of the epoch. They are used again, so that only
    the events of the steps that the host is ahead are in memory. The device continues in a pause.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._free: list[torch.cuda.Event] = []

    @override
    def _moment(self) -> torch.cuda.Event:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @override
    def _milliseconds(self, start: torch.cuda.Event, stop: torch.cuda.Event) -> float:
        return float(start.elapsed_time(stop))

    @override
    def _is_over(self, moment: torch.cuda.Event, wait: bool) -> bool:
        if wait:
            moment.synchronize()
        return wait or moment.query()  # type: ignore[no-untyped-call]

    @override
    def _release(self, moments: Iterable[torch.cuda.Event]) -> None:
        self._free.extend(moments)

    @override
    def allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self._device)


def clock_for(device: torch.device) -> HostClock:
    """Return the clock of a device; raise RuntimeError if it is neither a CPU nor a CUDA device."""
    if device.type == "cpu":
        return HostClock()
    if device.type == "cuda":
        return CudaClock(device)
    raise RuntimeError(
        f"Layers can be timed on 'cpu' and 'cuda' devices; the model is on {str(device)!r}. Profile it on one of those, or use "
        "that device's own profiler."
    )
