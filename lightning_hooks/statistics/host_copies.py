"""Small tensors on their way to the host, without waiting for the device."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor


def number(scalar: Tensor) -> float:
    """Read a 0-d CPU tensor from its memory."""
    value: Any = scalar.tolist()
    return float(value)


class HostCopies:
    """Carries copies of small tensors to the host, in order.

    From a CUDA device a copy goes into pinned memory behind the work that is queued, with an event that marks its arrival; what
    is on the CPU is there at once.

    Args:
        polls: Whether :meth:`arrived` may return whatever happens to be there. Where several ranks must agree it may not: then
            it returns what it was asked to wait for, and nothing else.
    """

    def __init__(self, polls: bool = True) -> None:
        self._polls = polls
        self._under_way: deque[tuple[Tensor, Any, Any]] = deque()

    def send(self, values: Tensor, note: Any = None) -> None:
        """Start a copy of ``values`` to the host. They may be overwritten afterwards.

        Args:
            values: Outside autograd.
            note: Comes back with the copy.
        """
        there, event = self.post(values)
        self._under_way.append((there, event, note))

    def post(self, values: Tensor) -> tuple[Tensor, Any]:
        """Start one copy; return where it will be, and the event after which it is there (None if it is there now)."""
        if not values.is_cuda:
            return values.to("cpu", copy=True), None
        there = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        there.copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(values.device))
        return there, event

    def arrived(self, wait: bool = False) -> list[tuple[np.ndarray[Any, Any], Any]]:
        """Return the copies that are there, oldest first, each with its note; each is returned once.

        Args:
            wait: Wait for those still under way.
        """
        here = []
        while self._under_way:
            values, event, note = self._under_way[0]
            if event is not None:
                if wait:
                    event.synchronize()
                elif not (self._polls and event.query()):
                    break
            self._under_way.popleft()
            here.append((values.numpy(), note))
        return here

    def forget(self) -> None:
        """Drop what is under way."""
        self._under_way.clear()
