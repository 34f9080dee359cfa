"""What the norms of an optimizer's gradients say, step by step, on the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.statistics import ParameterGradientStats

RUN = 3
"""Steps in a row at which a gradient must be too large before it explodes: one such step may be a bad batch, or the first."""

Trigger = tuple[str, int]


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


class NormWatch:
    """Finds the first step with a gradient that is not finite, and gradients that are too large for several steps in a row.

    Args:
        n_parameters: How many parameters have a place among the norms.
        absolute: A root mean square per element above which a gradient is too large.
        relative: Root mean square over the largest among the last eighth of the parameters, above which it is too.
    """

    def __init__(self, n_parameters: int, absolute: float = math.inf, relative: float = math.inf) -> None:
        self.absolute, self.relative = absolute, relative
        self.nonfinite: dict[int, Moment] = {}  # parameter -> the first step of the epoch at which it was not finite
        self.began: dict[int, Moment] = {}  # parameter -> since when it is too large
        self.grown = 0  # steps in a row at which some parameter was too large next to the last ones
        self._nonfinite_steps = np.zeros(n_parameters, dtype=np.int64)
        self._run = np.zeros(n_parameters, dtype=np.int64)
        self._squares = np.zeros(n_parameters)
        self._per_root = np.zeros(n_parameters)  # of a parameter of unknown size only NaN and inf are found

    def grow(self, n_parameters: int) -> None:
        """More parameters have a place now; the new ones come last."""
        more = n_parameters - len(self._run)
        self._nonfinite_steps, self._run = np.pad(self._nonfinite_steps, (0, more)), np.pad(self._run, (0, more))
        self._squares, self._per_root = np.pad(self._squares, (0, more)), np.pad(self._per_root, (0, more))

    def size(self, indices: Sequence[int], elements: Sequence[int]) -> None:
        """Set how many elements parameters have."""
        self._per_root[list(indices)] = [1.0 / math.sqrt(max(count, 1)) for count in elements]

    def add(self, norms: np.ndarray[Any, Any], moment: Moment) -> bool:
        """Take up one step.

        Args:
            norms: L2 norms of the gradients, of all parameters or of the first; 0 for one without.
            moment: Which step.

        Returns:
            Whether the step was with a gradient that is not finite.
        """
        norms = np.pad(norms, (0, len(self._run) - len(norms)))  # those of before the last ones came
        top = float(norms.max(initial=0.0))  # NaN if any is
        if not math.isfinite(top):
            if not moment.forgiven:
                self._note_nonfinite(norms, moment)
            return not moment.forgiven
        rms = norms * self._per_root
        top = float(rms.max(initial=0.0))
        self.grown = self.grown + 1 if math.isfinite(self.relative) and top > self.relative * _near_loss(rms) else 0
        if top > self.absolute or self.began:
            self._note_large(rms, moment)
        return False

    def _note_nonfinite(self, norms: np.ndarray[Any, Any], moment: Moment) -> None:
        for index in np.flatnonzero(~np.isfinite(norms)).tolist():
            self.nonfinite.setdefault(index, moment)
            self._nonfinite_steps[index] += 1

    def _note_large(self, rms: np.ndarray[Any, Any], moment: Moment) -> None:
        large = rms > self.absolute
        self._run = np.where(large, self._run + 1, 0)
        self._squares = np.where(large, self._squares + rms * rms, 0.0)
        now = np.flatnonzero(large).tolist()
        self.began = {index: self.began.get(index, moment) for index in now}

    def triggers(self) -> set[Trigger]:
        """What is wrong now: (kind, parameter); -1 stands for the course of the gradient over the parameters."""
        if not (self.nonfinite or self.began or self.grown):
            return set()
        found: set[Trigger] = {("nonfinite", index) for index in self.nonfinite}
        found |= {("exploding", index) for index in self.began if self._run[index] >= RUN}
        return found | ({("exploding", -1)} if self.grown >= RUN else set())

    def since(self, kind: str, index: int) -> Moment | None:
        """The step since which a parameter has what it has."""
        return (self.nonfinite if kind == "nonfinite" else self.began).get(index)

    def parameters(self) -> dict[int, ParameterGradientStats]:
        """What is known of the parameters that something is wrong with, by their index."""
        affected = {index for _, index in self.triggers() if index >= 0}
        return {index: self._stats(index) for index in sorted(affected)}

    def _stats(self, index: int) -> ParameterGradientStats:
        run, first = int(self._run[index]), self.nonfinite.get(index)
        rms = math.sqrt(self._squares[index] / run) if run else math.nan
        norm = rms / self._per_root[index] if run else math.nan
        return ParameterGradientStats(
            steps=run,
            norm=norm,
            norm_max=norm,
            rms=rms,
            zero_fraction=math.nan,
            nonfinite_steps=int(self._nonfinite_steps[index]),
            missing_steps=0,
            update_ratio=None,
            first_nonfinite_step=None if first is None else first.step,
        )

    def reset(self) -> None:
        """A new window: what was not finite is reported again; runs go on."""
        self.nonfinite.clear()
        self._nonfinite_steps[:] = 0


def _near_loss(rms: np.ndarray[Any, Any]) -> float:
    """The largest among the last eighth of the parameters that have a gradient; infinite if none has."""
    there = rms[rms > 0]
    return float(there[-max(1, len(there) // 8) :].max()) if len(there) else math.inf
