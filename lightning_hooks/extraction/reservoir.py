"""Which samples of a stream are kept, decided on the host and mergeable over ranks."""

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
    """Bounded choice of samples from a stream of unknown length.

    Each sample gets a key when it arrives, and the samples with the smallest keys are kept ("bottom-k sampling", Cohen and
    Kaplan 2007). With random keys every sample of the stream is as likely as any other to be kept; with the arrival number as
    key the first are. Either way the choice of several ranks together is the bottom of their joined keys. Keys come from a
    generator of its own, so no other random state moves.

    Attributes:
        capacity: How many samples are kept.
        sampling: ``first`` or ``reservoir``.
        seed: Seeds the keys of ``reservoir``.
        rank: This process, which numbers its arrivals ``rank``, ``rank + world``, …
        world: How many processes there are.
        seen: Samples that have arrived here.
    """

    capacity: int
    sampling: Sampling = "first"
    seed: int = 0
    rank: int = 0
    world: int = 1
    seen: int = 0
    _heap: list[tuple[float, int, int]] = field(default_factory=list)  # (-key, -arrival, slot): the next to go on top
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new stream, with the same keys as the last."""
        self.seen = 0
        self._heap.clear()
        self._random.seed(f"{self.seed}-{self.rank}")

    def admit(self, n: int) -> dict[int, int]:
        """Let ``n`` samples arrive.

        Returns:
            Slot to row: which of the ``n`` are kept now, and where. Slots count from 0 and are taken in order until all are.
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
        """The (key, arrival, slot) of each sample kept, in the order of arrival."""
        return sorted(((-key, -arrival, slot) for key, arrival, slot in self._heap), key=lambda entry: entry[1])


def choose(ranks: Sequence[Sequence[tuple[float, int, int]]], capacity: int) -> list[tuple[int, int]]:
    """Choose from what several ranks kept.

    Args:
        ranks: Each rank's :meth:`Reservoir.kept`.
        capacity: How many to keep of all together.

    Returns:
        (rank, slot) of each sample kept, in the order of arrival.
    """
    entries = [(key, arrival, rank, slot) for rank, kept in enumerate(ranks) for key, arrival, slot in kept]
    return [(rank, slot) for _, _, rank, slot in sorted(heapq.nsmallest(capacity, entries), key=lambda entry: entry[1])]
