"""The modules that created the nodes of the autograd graph."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lightning_hooks.profiling.calls import ROOT

# AccumulateGrad nodes, which parameters keep from step to step, all have this number. The engine runs one right after the
# node that passes it a gradient, so its time is assigned to that node's module without a hook.
_ACCUMULATE_GRAD = 2**64 - 1


class _Lane:
    """The forward passes of one thread in this step: autograd numbers the nodes of each thread in the order of their creation."""

    def __init__(self, place: int) -> None:
        # The sequence numbers of nodes have no public name; torch.autograd.profiler and the compiler match forward and backward
        # operations by them.
        self.starts: list[int] = [torch.autograd._get_sequence_nr()]  # type: ignore[attr-defined]
        self.places: list[int] = [place]  # from starts[i] on, nodes are created at places[i]
        self.seen: set[int] = {_ACCUMULATE_GRAD}

    def move(self, place: int) -> None:
        self.starts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self.places.append(place)


class NodeMap:
    """Hooks the nodes of a step's graph, each for the place in the call tree that created it.

    Module backward hooks do not support in-place operations and outputs that are not tensors. Hooks of nodes do: a node keeps its
    number when its tensor changes. No reference to a node is kept, so graphs are freed as usual.

    Args:
        hook_for: Returns the pre-hook for the nodes of a place.
    """

    def __init__(self, hook_for: Callable[[int], Callable[..., Any]]) -> None:
        self._hook_for = hook_for
        self._lanes: dict[int, _Lane] = {}

    def clear(self) -> None:
        """Start a new step."""
        self._lanes.clear()
        self._lane(ROOT)

    def _lane(self, place: int) -> _Lane:
        thread = threading.get_ident()
        lane = self._lanes.get(thread)
        if lane is None:
            lane = self._lanes[thread] = _Lane(place)
        return lane

    def move(self, place: int) -> None:
        """Assign the nodes that this thread creates from now on to ``place``."""
        self._lane(place).move(place)

    def claim(self, nodes: Iterable[Any]) -> None:
        """Hook ``nodes`` and the nodes of this step before them, each once.

        Args:
            nodes: The ``grad_fn`` of tensors, or None.
        """
        lane = self._lane(ROOT)
        first, seen = lane.starts[0], lane.seen
        waiting = [node for node in nodes if node is not None]
        while waiting:
            node = waiting.pop()
            number = node._sequence_nr()
            if number in seen or number < first:
                continue
            seen.add(number)
            place = lane.places[bisect_right(lane.starts, number) - 1]
            node.register_prehook(self._hook_for(place))
            waiting.extend(following for following, _ in node.next_functions if following is not None)
