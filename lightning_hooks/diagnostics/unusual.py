"""The batches of a run with the largest losses and the largest gradient norms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.declare.plain import from_plain, to_plain

MOST = 5
"""How many batches are kept."""
MOST_SAMPLES = 64
"""How many samples of a batch are named."""

Found = tuple[float, int, int]
"""The value of a batch, its index in the epoch, and the global step before it."""


@dataclass(frozen=True, slots=True)
class UnusualBatch:
    """A training batch with one of the five largest losses, or gradient norms, of a run.

    Attributes:
        value: Its loss, or the gradient norm before clipping of the optimizer step that it ended.
        epoch: The epoch.
        batch: Its index in the epoch.
        step: The global step before it.
        samples: Its samples as alerts name them, of a larger batch the first 64; empty where they are not known, and with several
            processes, each of which has others.
    """

    value: float
    epoch: int
    batch: int
    step: int
    samples: tuple[int | str, ...] = ()


class LargestBatches:
    """The batches of a run with the largest of a number: of the windows so far, and of the one under way.

    Args:
        samples_of: Returns the samples of a batch, by its epoch and its index; empty where they are not known.
    """

    def __init__(self, samples_of: Callable[[int, int], Sequence[int | str]]) -> None:
        self._samples_of = samples_of
        self._known: tuple[UnusualBatch, ...] = ()
        self._latest: tuple[UnusualBatch, ...] = ()

    def read(self, epoch: int, found: Iterable[Found]) -> tuple[UnusualBatch, ...]:
        """The largest of the run, the largest first; of equal ones the earlier.

        Args:
            epoch: Of the window under way.
            found: Its largest.
        """
        batches = {(one.epoch, one.batch): one for one in self._known}
        for value, batch, step in found:
            if math.isfinite(value):
                batches.setdefault((epoch, batch), UnusualBatch(value, epoch, batch, step))
        largest = sorted(batches.values(), key=lambda one: (-one.value, one.epoch, one.batch))[:MOST]
        self._latest = tuple(one if one in self._known else self._with_samples(one) for one in largest)
        return self._latest

    def _with_samples(self, one: UnusualBatch) -> UnusualBatch:
        return dataclasses.replace(one, samples=tuple(self._samples_of(one.epoch, one.batch)[:MOST_SAMPLES]))

    def reset(self) -> None:
        """Start a new window, behind the one that was read last."""
        self._known = self._latest

    def state(self) -> list[dict[str, Any]]:
        """Those of the windows so far, in plain types."""
        plain: list[dict[str, Any]] = to_plain(self._known)
        return plain

    def load(self, state: Sequence[Any]) -> None:
        """Load the :meth:`state` of an earlier run."""
        self._known = self._latest = tuple(from_plain(UnusualBatch, one) for one in state)
