"""Which module made which node of the autograd graph."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Any

import torch

from lightning_hooks.profiling.calls import ROOT

# AccumulateGrad nodes, which parameters keep from step to step, all have this number. The engine runs one right after the
# node that hands it a gradient, so its time goes to that node's module without a hook.
_ACCUMULATE_GRAD = 2**64 - 1


class _Lane:
    """One thread's forward passes in this step: autograd numbers the nodes of each thread in the order of their making."""

    def __init__(self, place: int) -> None:
        # There is no public name for the number the next node will get, nor for a node's own; they are what
        # torch.autograd.profiler and the compiler match forward and backward operations by.
        self.starts: list[int] = [torch.autograd._get_sequence_nr()]  # type: ignore[attr-defined]
        self.places: list[int] = [place]  # from starts[i] on, nodes are made at places[i]
        self.seen: set[int] = {_ACCUMULATE_GRAD}

    def move(self, place: int) -> None:
        self.starts.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        self.places.append(place)


class NodeMap:
    """Hooks the nodes of a step's graph, each for the place in the call tree that was running when it was made.

    Module backward hooks refuse models with in-place operations and miss outputs that are not tensors. Nodes do neither: a node
    keeps its number whatever later becomes of the tensor it was made for. No node is held; a graph dies when it would have.

    Args:
        hook_for: Place to the pre-hook its nodes get.
    """

    def __init__(self, hook_for: Callable[[int], Callable[..., Any]]) -> None:
        self._hook_for = hook_for
        self._lanes: dict[int, _Lane] = {}

    def clear(self) -> None:
        """A new step starts."""
        self._lanes.clear()
        self._lane(ROOT)

    def _lane(self, place: int) -> _Lane:
        thread = threading.get_ident()
        lane = self._lanes.get(thread)
        if lane is None:
            lane = self._lanes[thread] = _Lane(place)
        return lane

    def move(self, place: int) -> None:
        """What this thread makes from now on is made at ``place``."""
        self._lane(place).move(place)

    def claim(self, nodes: Iterable[Any]) -> None:
        """Hook the nodes of this step that ``nodes`` were computed from, each once.

        Args:
            nodes: Where to start: the ``grad_fn`` of tensors, or None.
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
