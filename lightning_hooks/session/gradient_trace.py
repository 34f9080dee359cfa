"""What happens to the gradients that a step leaves behind: zeroed, as they should be, or not, or clipped when it is too late."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lightning_hooks.declare.step import versions

LOOKED_AT = 4
"""How many parameters of an optimizer are looked at, evenly spread: what zeroes or clips one does so to all."""


class GradientTrace:
    """Follows the gradients of one optimizer from one step to the next by torch's own count of changes in place; reads no number.

    Args:
        parameters: The parameters that had a gradient at the step that was just taken.

    Attributes:
        unzeroed: Nothing was done to the gradients between the step and what backward added to them: they were not zeroed.
        wasted: They were changed, and then zeroed.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters[:: -(-len(parameters) // LOOKED_AT)]
        self._versions = versions(self._parameters)
        self.unzeroed = True
        self.wasted = False

    def before_zero_grad(self) -> None:
        """Lightning is about to zero them."""
        now = versions(self._parameters)
        same_tensors = [tensor for tensor, _ in now] == [tensor for tensor, _ in self._versions]
        self.wasted |= bool(now) and same_tensors and now != self._versions

    def before_backward(self) -> None:
        """Backward starts. Zeroing leaves no gradient, or counts as a change."""
        self.unzeroed = self.unzeroed and versions(self._parameters) == self._versions

    def after_backward(self) -> None:
        """Backward is done: what it added is no doing of the user's."""
        self._versions = versions(self._parameters)
