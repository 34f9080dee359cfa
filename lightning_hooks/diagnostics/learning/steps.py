"""What measured steps gain, against what was predicted."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.declare.measured import MeasuredLoss
from lightning_hooks.diagnostics.learning.report import UNSURE
from lightning_hooks.statistics.reduction import added, latest
from lightning_hooks.statistics.tables import HostNumbers

RECENT = 16
"""Measured steps that are kept, the last ones."""
FEWEST = 4
"""So many there must be for ``progress``."""
SURROGATE = 1.2
"""Median step ratio above which gradients are not those of the loss: along a step a loss hardly falls faster than at its start."""
WIDTH = 4  # gain, predicted gain, the error of both, gain on the batch measured before


class MeasuredSteps:
    """The last measured steps of a run, and the gains so far."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, ...]] = deque(maxlen=RECENT)
        self._count, self._step, self._gains = 0, 0, 0.0
        self._levels = [0.0, 0.0]  # of the loss on new batches, when the first step was measured and the last one

    @property
    def table(self) -> HostNumbers:
        """The numbers to be packed: of the ranks, then of each step that is kept."""
        return HostNumbers(self._numbers, added, latest)

    def add(self, measured: MeasuredLoss, predicted: float, error: float) -> None:
        """Record a measured step.

        Args:
            measured: Its losses.
            predicted: The gain that was predicted.
            error: The standard error of that.
        """
        gain = measured.before - measured.after
        known = measured.other_before is not None and measured.other_after is not None
        transfer = (measured.other_before or 0.0) - (measured.other_after or 0.0) if known else math.nan
        if not all(map(math.isfinite, (gain, predicted, error, measured.level))):
            return
        self._recent.append((gain, predicted, error + measured.rounding, transfer))
        self._gains += gain * (measured.step - self._step)  # a measured step stands for those since the one before
        self._levels = [self._levels[0] if self._count else measured.level, measured.level]
        self._count, self._step = self._count + 1, measured.step

    def _numbers(self) -> list[float]:
        recent = [*self._recent]
        recent += [(math.nan,) * WIDTH] * (RECENT - len(recent))
        return [1.0, float(self._count), self._gains, *self._levels, *(number for step in recent for number in step)]

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from, in plain types."""
        return {"recent": [*self._recent], "so_far": (self._count, self._step, self._gains, *self._levels)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the :meth:`state` of an earlier run."""
        if state:
            self._recent.extend(tuple(step) for step in state["recent"])
            self._count, self._step, self._gains, *self._levels = state["so_far"]


def read_steps(numbers: Sequence[float], why_not: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Name the numbers of all ranks.

    Args:
        numbers: As they were packed, and added over ranks.
        why_not: Why steps are not measured; empty where they are.

    Returns:
        Fields of the report, and for those that are None the reason.
    """
    _ranks, count, gains, first, last, *rest = [number / max(numbers[0], 1.0) for number in numbers]
    steps = [rest[place : place + WIDTH] for place in range(0, len(rest), WIDTH)]
    steps = [step for step in steps if not math.isnan(step[0])]
    waits = why_not or "no step was measured yet" * (not steps)
    if waits:
        return {"reruns": round(count)}, dict.fromkeys(("gain", "step_ratio", "transfer", "progress"), waits)
    reasons: dict[str, str] = {}
    transfers = [step[3] for step in steps if not math.isnan(step[3])]
    ratios = [gain / predicted for gain, predicted, error, _ in steps if predicted > 0 and error <= UNSURE * predicted]
    ratio = statistics.median(ratios) if ratios else None
    if ratio is None:
        reasons["step_ratio"] = f"the error of each predicted gain is above {UNSURE:.0%} of it, or it is not positive"
    elif ratio > SURROGATE and len(ratios) >= FEWEST:
        reasons["step_ratio"] = "steps gain more than gradients predict, as where these are straight-through or surrogate"
        ratio = None
    if not transfers:
        reasons["transfer"] = "it needs two measured steps"
    progress = (first - last) / gains if gains > 0 and len(steps) >= FEWEST else None
    if progress is None:
        few = f"it needs {FEWEST} measured steps"
        reasons["progress"] = few if len(steps) < FEWEST else "measured steps do not gain on their own batches"
    fields = {
        "gain": statistics.fmean(step[0] for step in steps),
        "step_ratio": ratio,
        "transfer": statistics.fmean(transfers) if transfers else None,
        "progress": progress,
        "reruns": round(count),
    }
    return fields, reasons
