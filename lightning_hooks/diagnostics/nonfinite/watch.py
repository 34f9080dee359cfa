"""Which optimizer steps had a gradient that was not finite, step by step, on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.diagnostics.gradients.stats import ParameterGradientStats


@dataclass(frozen=True, slots=True)
class Moment:
    """An optimizer step.

    Attributes:
        step: The trainer's ``global_step`` before it.
        batch: The index of its training batch in the epoch.
        forgiven: The optimizer itself leaves out a step whose gradients are not finite (fused, under a loss scaler).
    """

    step: int
    batch: int
    forgiven: bool = False


class NonfiniteWatch:
    """Finds the first step of a window with a gradient that is not finite, for each parameter.

    Args:
        n_parameters: How many parameters have a place among the norms.

    Attributes:
        first: Parameter to the first step of the window at which its gradient was not finite.
    """

    def __init__(self, n_parameters: int) -> None:
        self.first: dict[int, Moment] = {}
        self._steps = np.zeros(n_parameters, dtype=np.int64)

    def grow(self, n_parameters: int) -> None:
        """More parameters have a place now; the new ones come last."""
        self._steps = np.pad(self._steps, (0, n_parameters - len(self._steps)))

    def add(self, norms: np.ndarray[Any, Any], moment: Moment) -> bool:
        """Record one step.

        Args:
            norms: L2 norms of the gradients, of all parameters or of the first; 0 for one without.
            moment: Which step.

        Returns:
            Whether the step was with a gradient that is not finite.
        """
        if moment.forgiven or math.isfinite(norms.sum()):
            return False
        for index in np.flatnonzero(~np.isfinite(norms)).tolist():
            self.first.setdefault(index, moment)
            self._steps[index] += 1
        return True

    def parameters(self) -> dict[int, ParameterGradientStats]:
        """What is known of the parameters that something is wrong with, by their index."""
        return {
            index: ParameterGradientStats(
                steps=0,
                norm=math.nan,
                norm_max=math.nan,
                rms=math.nan,
                zero_fraction=math.nan,
                nonfinite_steps=int(self._steps[index]),
                missing_steps=0,
                update_ratio=None,
                first_nonfinite_step=moment.step,
            )
            for index, moment in sorted(self.first.items())
        }

    def reset(self) -> None:
        """A new window starts: what was not finite is reported again."""
        self.first.clear()
        self._steps[:] = 0
