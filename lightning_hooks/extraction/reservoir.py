"""Selection of samples from a stream, on the host and mergeable over ranks."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Sampling = Literal["first", "reservoir"]
SAMPLINGS = ("first", "reservoir")


@dataclass(slots=True)
class Reservoir:
    """Bounded selection of samples from a stream of unknown length.

    Each sample gets a key on arrival, and the samples with the smallest keys are kept ("bottom-k sampling", Cohen and Kaplan 2007,
    "Summarizing data using bottom-k sketches"). Random keys select uniformly; arrival numbers as keys select the first. The
    selection of several ranks is the bottom-k of all their keys. Keys come from a separate generator.

    Attributes:
        capacity: Number of samples to keep.
        sampling: ``first`` or ``reservoir``.
        seed: Seeds the keys of ``reservoir``.
        rank: This process, whose arrivals are numbered ``rank``, ``rank + world``, …
        world: Number of processes.
        seen: Samples that have arrived here.
    """

    capacity: int
    sampling: Sampling = "first"
    seed: int = 0
    rank: int = 0
    world: int = 1
    seen: int = 0
    _heap: list[tuple[float, int, int]] = field(default_factory=list)  # (-key, -arrival, slot): the next to be replaced on top
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new stream, with the same keys as the last."""
        self.seen = 0
        self._heap.clear()
        self._random.seed(f"{self.seed}-{self.rank}")

    def admit(self, n: int) -> dict[int, int]:
        """Add ``n`` samples of the stream.

        Returns:
            Slot to row, of those of the ``n`` samples that are kept. Slots count from 0 and are filled in order.
        """
        placed: dict[int, int] = {}
        if self.sampling == "first" and self.seen >= self.capacity:
            self.seen += n
            return placed
        for row in range(n):
            arrival = self.seen * self.world + self.rank
            key = float(arrival) if self.sampling == "first" else self._random.random()
            self.seen += 1
            if len(self._heap) < self.capacity:
                slot = len(self._heap)
                heapq.heappush(self._heap, (-key, -arrival, slot))
            elif key < -self._heap[0][0]:
                slot = self._heap[0][2]
                heapq.heapreplace(self._heap, (-key, -arrival, slot))
            else:
                continue
            placed[slot] = row
        return placed

    def kept(self) -> list[tuple[float, int, int]]:
        """Return the (key, arrival, slot) of each kept sample, in the order of arrival."""
        return sorted(((-key, -arrival, slot) for key, arrival, slot in self._heap), key=lambda entry: entry[1])


def choose(ranks: Sequence[Sequence[tuple[float, int, int]]], capacity: int) -> list[tuple[int, int]]:
    """Select from the samples of several ranks.

    Args:
        ranks: Each rank's :meth:`Reservoir.kept`.
        capacity: Number of samples to keep.

    Returns:
        The (rank, slot) of each kept sample, in the order of arrival.
    """
    entries = [(key, arrival, rank, slot) for rank, kept in enumerate(ranks) for key, arrival, slot in kept]
    return [(rank, slot) for _, _, rank, slot in sorted(heapq.nsmallest(capacity, entries), key=lambda entry: entry[1])]
