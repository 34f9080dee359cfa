"""A training step, measured by running its batch again."""

from __future__ import annotations

from dataclasses import dataclass

FIRST = (1, 2, 4, 8)
"""The first steps that are measured."""
EVERY = 200
"""After them, every so many steps."""


@dataclass(frozen=True, slots=True)
class MeasuredLoss:
    """The losses around one optimizer step, each of a whole batch with the randomness of its forward pass.

    Attributes:
        step: The number of the step, from 1.
        before: The loss of the step's batch, before it.
        after: The same after it.
        level: Mean loss of the last batches before the step, each when it was new.
        rounding: How far a loss may be off, for the precision that it is computed in.
        other_before: The loss of the batch measured before, before this step; None where there is none.
        other_after: The same after it.
    """

    step: int
    before: float
    after: float
    level: float
    rounding: float = 0.0
    other_before: float | None = None
    other_after: float | None = None


def is_measured(step: int) -> bool:
    """Whether an optimizer step is measured, by its number from 1."""
    return step in FIRST or step % EVERY == 0
