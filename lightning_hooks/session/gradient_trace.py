"""What happens to the gradients that a step leaves behind: zeroed, as they should be, or not, or clipped when it is too late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from torch import Tensor

from lightning_hooks.declare.step import versions

LOOKED_AT = 4
"""How many parameters of an optimizer are looked at, evenly spread: what zeroes or clips one does so to all."""


class GradientTrace:
    """Follows the gradients of one optimizer from one step to the next by torch's own count of changes in place; reads no number.

    Args:
        parameters: The parameters that had a gradient at the step that was just taken.
        unannounced: Whether nobody says when they are zeroed, as under manual optimization. Then those of biases are kept
            until the next backward: where the parameters have none then, what was done to them before was in vain.

    Attributes:
        unzeroed: Nothing was done to the gradients between the step and what backward added to them: they were not zeroed.
        wasted: They were changed, and then zeroed.
    """

    def __init__(self, parameters: Sequence[Tensor], unannounced: bool = False) -> None:
        small = [*islice((parameter for parameter in parameters if parameter.dim() < 2), LOOKED_AT if unannounced else 0)]
        self._parameters = small or parameters[:: -(-len(parameters) // LOOKED_AT)]
        self._keeps = bool(small)
        self._kept: list[Tensor] = []
        self.unzeroed = True
        self.wasted = False
        self.after_backward()

    def before_zero_grad(self) -> None:
        """Lightning is about to zero them."""
        now = versions(self._parameters)
        same_tensors = [tensor for tensor, _ in now] == [tensor for tensor, _ in self._versions]
        self.wasted |= bool(now) and same_tensors and now != self._versions

    def before_backward(self) -> None:
        """Backward starts. Zeroing leaves no gradient, or counts as a change."""
        now = versions(self._parameters)
        self.unzeroed = self.unzeroed and now == self._versions
        before = [version for _, version in self._versions]
        changed = [gradient._version != version for gradient, version in zip(self._kept, before, strict=bool(self._kept))]
        self.wasted |= not now and any(changed)
        self._kept = []

    def after_backward(self) -> None:
        """Backward is done: what it added is no doing of the user's."""
        self._versions = versions(self._parameters)
        gradients = (parameter.grad for parameter in self._parameters) if self._keeps else ()
        self._kept = [gradient for gradient in gradients if gradient is not None]
