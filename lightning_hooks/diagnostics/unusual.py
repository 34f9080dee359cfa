"""The batches of a run with the largest losses."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.declare.plain import from_plain, to_plain
from lightning_hooks.diagnostics.loss.report import LossWindow

MOST = 5  # how many batches are kept
MOST_SAMPLES = 64  # how many samples of a batch are named
SLOTS = 4096  # batches whose step is remembered, the last ones, as many as those whose loss a window holds one by one


@dataclass(frozen=True, slots=True)
class UnusualBatch:
    """A training batch with one of the five largest losses of a run.

    Attributes:
        value: Its loss.
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


class LargestLosses:
    """The batches of a run with the largest losses: of the windows so far, and of the one under way."""

    def __init__(self) -> None:
        self._known: tuple[UnusualBatch, ...] = ()
        self._latest: tuple[UnusualBatch, ...] = ()
        self._steps = array("q", bytes(8 * SLOTS))  # by the index of the batch

    def batch_end(self, batch: int, step: int) -> None:
        """A batch ends, before which the global step was ``step``."""
        self._steps[batch % SLOTS] = step

    def of_window(
        self, window: LossWindow, epoch: int, samples_of: Callable[[int, int], Sequence[int | str]]
    ) -> tuple[UnusualBatch, ...]:
        """The largest of the run, with those of the window under way, the largest first; of equal ones the earlier.

        ``samples_of`` returns the samples of a batch, by its epoch and its index; empty where they are not known.
        """
        values, first = np.where(np.isfinite(window.values), window.values, -math.inf), window.first
        batches = {(one.epoch, one.batch): one for one in self._known}
        for place in np.argsort(-values, kind="stable")[:MOST].tolist():
            value, batch = float(values[place]), first + place
            if math.isfinite(value):
                batches.setdefault((epoch, batch), UnusualBatch(value, epoch, batch, self._steps[batch % SLOTS]))
        largest = sorted(batches.values(), key=lambda one: (-one.value, one.epoch, one.batch))[:MOST]
        self._latest = tuple(
            one if one in self._known else dataclasses.replace(one, samples=tuple(samples_of(one.epoch, one.batch)[:MOST_SAMPLES]))
            for one in largest
        )
        return self._latest

    def reset(self) -> None:
        """Start a new window, behind the one that was read last."""
        self._known = self._latest

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from, in plain types."""
        return {"batches": to_plain(self._known), "steps": self._steps.tolist()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the :meth:`state` of an earlier run."""
        self._known = self._latest = tuple(from_plain(UnusualBatch, one) for one in state.get("batches", ()))
        self._steps[:] = array("q", state.get("steps", self._steps))
