"""Numbers that other people's modules and optimizers hold, in tensors or as settings, where there are any."""

from __future__ import annotations

import math
from collections.abc import Iterator
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch._subclasses import FakeTensor  # torch has no public way to know one

from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.tensors import is_freed


def has_values(tensor: Tensor) -> bool:
    """Whether a tensor has values: it is not lazy, fake or on the meta device, and its storage was not freed."""
    return not (nn.parameter.is_lazy(tensor) or tensor.is_meta or isinstance(tensor, FakeTensor) or is_freed(tensor))


def stored_tensor(module: nn.Module, name: str) -> Tensor | None:
    """What a module holds under a name, as ``stored`` finds it, if that is a tensor with values."""
    found = stored(module, name)
    return found if isinstance(found, Tensor) and has_values(found) else None


def weights_of(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a module itself that have values."""
    return filter(has_values, nn.Module.parameters(module, recurse=False))


def as_number(value: Any) -> float | None:
    """A setting that is a real number; None for any other object, and for a tensor, which may be on a device."""
    try:
        return float(value) if isinstance(value, Real) else None
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def read_number(value: Any) -> float | None:
    """A :func:`as_number`, also in a tensor of one. Waits for the device."""
    if not isinstance(value, Tensor):
        return as_number(value)
    return float(value) if value.numel() == 1 and not value.is_complex() and has_values(value) else None
