"""The places in the tree of calls, and the modules that created the nodes of the autograd graph."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import torch

FORWARD, BACKWARD, RECOMPUTE, OTHER = range(4)
"""What a step is doing; ``RECOMPUTE`` is forward again, inside backward (activation checkpointing), ``OTHER`` the optimizer,
callbacks and logging."""

Place: TypeAlias = tuple[int, ...]
"""A place in the tree of calls: a site after those whose calls contain it. A module called from two others has two places, so that
its time counts for its caller."""

ROOT: Place = ()
"""The place outside every module."""

Account: TypeAlias = tuple[Place, int]
"""What time is assigned to: a place, and a phase."""

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
    """Hooks the nodes of a step's graph, each for the place in the call tree that created it.

    Module backward hooks do not support in-place operations and outputs that are not tensors. Hooks of nodes do: a node keeps its
    number when its tensor changes. No reference to a node is kept, so graphs are freed as usual.

    Args:
        hook_for: Returns the pre-hook for the nodes of a place.
    """

    def __init__(self, hook_for: Callable[[Place], Callable[..., Any]]) -> None:
        self._hook_for = hook_for
        self._lanes: dict[int, _Lane] = {}

    def clear(self) -> None:
        """Start a new step."""
        self._lanes = {threading.get_ident(): _Lane()}

    def _lane(self) -> _Lane:
        thread = threading.get_ident()
        if thread not in self._lanes:
            self._lanes[thread] = _Lane()
        return self._lanes[thread]

    def move(self, place: Place) -> None:
        """Assign the nodes that this thread creates from now on to ``place``."""
        self._lane().move(place)

    def claim(self, nodes: Iterable[Any]) -> None:
        """Hook ``nodes`` and the nodes of this step before them, each once.

        Args:
            nodes: The ``grad_fn`` of tensors, or None.
        """
        lane = self._lane()
        waiting = [node for node in nodes if node is not None]
        while waiting:
            node = waiting.pop()
            number = node._sequence_nr()
            if number in lane.seen or number < lane.starts[0]:
                continue
            lane.seen.add(number)
            node.register_prehook(self._hook_for(lane.places[bisect_right(lane.starts, number) - 1]))
            waiting.extend(following for following, _ in node.next_functions if following is not None)
