"""When a hook may record."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Gate:
    """A switch that many hooks read and one callback turns.

    A forward hook fires in validation, in sanity checks, in prediction and again when activation checkpointing recomputes
    a layer during backward. Only the first forward of a sampled training batch is wanted, so the gate opens when such a
    batch starts and closes while backward runs and when the batch ends.

    Attributes:
        open: Whether hooks record now.
        sampled: Whether the batch under way is a sampled one.
        running: Whether a batch is under way.
    """

    open: bool = False
    sampled: bool = False
    running: bool = False

    def __bool__(self) -> bool:
        return self.open

    def start(self, sampled: bool) -> None:
        """A training batch starts; ``sampled`` says whether it is recorded."""
        self.open = self.sampled = sampled
        self.running = True
        if sampled:
            _UNDER_WAY[id(self)] = self

    def pause(self) -> None:
        """Backward starts: what fires now is recomputation."""
        self.open = False

    def resume(self) -> None:
        """Backward is over; a manual loop may run forward again in the same batch."""
        self.open = self.sampled

    def stop(self) -> None:
        """The batch is over."""
        self.open = self.sampled = self.running = False
        _UNDER_WAY.pop(id(self), None)


class DetailGate:
    """Open where a gate is, in the batches in which costly statistics are taken too.

    Args:
        gate: The gate.

    Attributes:
        detailed: Whether the batch under way is such a one.
    """

    __slots__ = ("_gate", "detailed")

    def __init__(self, gate: Gate) -> None:
        self._gate, self.detailed = gate, False

    @property
    def open(self) -> bool:
        """Whether hooks record now."""
        return self.detailed and self._gate.open

    @property
    def sampled(self) -> bool:
        """Whether the batch under way is recorded in detail."""
        return self.detailed and self._gate.sampled


_UNDER_WAY: dict[int, Gate] = {}
"""The gates of the batches under way."""


@contextmanager
def all_closed() -> Iterator[None]:
    """Close every gate in this block: a model that runs for other purposes in the middle of a batch is not its training."""
    closed = [gate for gate in _UNDER_WAY.values() if gate.open]
    for gate in closed:
        gate.open = False
    try:
        yield
    finally:
        for gate in closed:
            gate.open = gate.sampled
