"""The batches of a run with the largest losses."""

from __future__ import annotations

import math
from array import array
from typing import Any

import numpy as np

from lightning_hooks.diagnostics.loss.report import LossWindow
from lightning_hooks.diagnostics.unusual import MOST, LargestBatches, SamplesOf, UnusualBatch

SLOTS = 4096
"""Batches whose step is remembered, the last ones, as many as those whose loss a window holds one by one."""


class LargestLosses:
    """The batches with the largest losses, of the losses that windows hold."""

    def __init__(self) -> None:
        self._batches = LargestBatches()
        self._steps = array("q", bytes(8 * SLOTS))  # by the index of the batch

    def batch_end(self, batch: int, step: int) -> None:
        """A batch ends, before which the global step was ``step``."""
        self._steps[batch % SLOTS] = step

    def read(self, window: LossWindow, epoch: int, samples_of: SamplesOf) -> tuple[UnusualBatch, ...]:
        """The batches of the run so far, the largest loss first.

        Args:
            window: The window under way, or several that are merged.
            epoch: Its epoch.
            samples_of: Asked for the samples of those that are new.
        """
        values, first = np.where(np.isfinite(window.values), window.values, -math.inf), window.first
        places = np.argsort(-values, kind="stable")[:MOST].tolist()
        found = [(float(values[place]), first + place, self._steps[(first + place) % SLOTS]) for place in places]
        return self._batches.read(epoch, found, samples_of)

    def reset(self) -> None:
        """Start a new window, behind the one that was read last."""
        self._batches.reset()

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from, in plain types."""
        return {"batches": self._batches.state(), "steps": self._steps.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Load the :meth:`state` of an earlier run."""
        self._batches.load(state.get("batches", ()))
        self._steps[:] = array("q", state.get("steps", self._steps))
