"""Sees ``loss.backward()`` in a loop that does not say when it comes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from typing_extensions import override

SMALLEST_SCALE = 256.0
"""From here on a factor of the loss is taken for a loss scale."""


class BackwardMode(TorchFunctionMode):
    """Passes each call on unchanged, and hands on those of ``Tensor.backward``."""

    def __init__(self, backward: Callable[[Tensor, Callable[[], Any]], Any]) -> None:
        super().__init__()
        self._backward = backward

    @override
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is Tensor.backward:
            return self._backward(args[0], lambda: function(*args, **(kwargs or {})))
        return function(*args, **(kwargs or {}))


def is_scaled(loss: Tensor) -> bool:
    """Whether a loss looks as if a GradScaler had scaled it. It waits for the device."""
    node: Any = loss.grad_fn  # what a product is of has no public name
    factor = getattr(node, "_saved_other", None) if type(node).__name__ == "MulBackward0" else None
    if not isinstance(factor, Tensor) or factor.dim() or factor.requires_grad or not factor.is_floating_point():
        return False
    return float(factor) >= SMALLEST_SCALE and math.log2(float(factor)).is_integer()
