"""A number that may change from epoch to epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

Factor: TypeAlias = float | Mapping[int, float] | Callable[[int], float | None]
"""A number; a mapping from first epochs to numbers; or a function of the epoch (None: no number)."""


class Schedule:
    """A number for each epoch.

    Args:
        name: The name of the argument, for messages.
        factor: A number for all epochs; a mapping, such as ``{0: 0.1, 5: 1.0}`` for 0.1 from epoch 0 and 1.0 from epoch 5, with no
            number before its first epoch; or a function of the epoch that returns the number, or None.
        low: Lower bound.
        above: Whether the bound is exclusive.

    Raises:
        TypeError: If ``factor`` is of another type.
        ValueError: If a number is not finite or out of bounds, or the mapping is empty or has a negative epoch.
    """

    def __init__(self, name: str, factor: Factor, low: float = -math.inf, above: bool = False) -> None:
        self.name, self.factor, self.low, self.above = name, factor, low, above
        if isinstance(factor, Mapping):
            if not factor:
                raise ValueError(f"{name} must have a number for some epoch; got {factor!r}.")
            for epoch, value in factor.items():
                if isinstance(epoch, bool) or not isinstance(epoch, int):
                    raise TypeError(f"{name} must map epochs (integers) to numbers; got {epoch!r} in {factor!r}.")
                if epoch < 0:
                    raise ValueError(f"{name} must map epochs from 0 on; got {epoch!r} in {factor!r}.")
                self._checked(value)
        elif not callable(factor):
            self._checked(factor)

    def at(self, epoch: int) -> float | None:
        """Return the number for an epoch, or None."""
        if isinstance(self.factor, Mapping):
            begun = [start for start in self.factor if start <= epoch]
            return self._checked(self.factor[max(begun)]) if begun else None
        if callable(self.factor):
            value = self.factor(epoch)
            return None if value is None else self._checked(value, f" from {self.factor!r} for epoch {epoch}")
        return self._checked(self.factor)

    def _checked(self, value: object, where: str = "") -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(
                f"{self.name} must be a number, a mapping of epochs to numbers, or a function of the epoch; got {value!r}{where}."
            )
        if not math.isfinite(value) or value < self.low or (self.above and value == self.low):
            bound = "finite" if self.low == -math.inf else f"{'above' if self.above else 'at least'} {self.low:g} and finite"
            raise ValueError(f"{self.name} must be {bound}; got {value!r}{where}.")
        return float(value)
