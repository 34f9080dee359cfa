"""What is recorded under a loss scaler waits for the optimizer step that decides whether it counts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Pending:
    """Records of backward passes whose steps are still to come.

    With several optimizers each backward pass is kept with those it has gradients for, so that the step of one does not decide
    about the gradients of another. Of a pass that has gradients for several, the first step decides.

    Args:
        empty: Makes the record of nothing.
        merge: Merges two records.

    Attributes:
        now: The record of the backward pass under way, written into in place.
    """

    def __init__(self, empty: Callable[[], Tensor], merge: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._empty, self._merge = empty, merge
        self.now = empty()
        self._aside: dict[frozenset[int], Tensor] = {}

    def set_aside(self, optimizers: frozenset[int]) -> None:
        """A backward pass is over. ``optimizers``: those it has gradients for; none where that is not known."""
        known = self._aside.get(optimizers)
        self._aside[optimizers] = self.now.clone() if known is None else self._merge(known, self.now)
        self.now.copy_(self._empty())

    def take(self, optimizer: int | None = None) -> Tensor:
        """What a step of this optimizer decides about; everything if there is but one. It waits no longer."""
        found = self.now.clone()
        for optimizers in [each for each in self._aside if optimizer is None or not each or optimizer in each]:
            found = self._merge(found, self._aside.pop(optimizers))
        self.now.copy_(self._empty())
        return found

    def records(self) -> list[Tensor]:
        """All that waits."""
        return [self.now, *self._aside.values()]
