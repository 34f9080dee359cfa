"""A batch, and the states of generators, in the types that ``torch.load`` takes with ``weights_only=True``, and back."""

from __future__ import annotations

import collections
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.hooks.generators import Generators

DEEPEST = 16
_ARRAY, _FIELDS, _ENTRIES = "__array__", "__fields__", "__entries__"


class CapsuleError(ValueError):
    """Raised for a capsule that cannot be read, or does not fit; nothing of it is run."""


def check(fine: bool, text: str) -> None:
    """Raise a :class:`CapsuleError` with this text, unless all is fine."""
    if not fine:
        raise CapsuleError(text)


class NotStorableError(TypeError):
    """Raised for a batch with an object that is neither a tensor, an array, a number, a text nor a container of these."""


def to_stored(value: Any, depth: int = 0) -> Any:
    """A value in the types that ``torch.load`` takes with ``weights_only=True``, its tensors on the CPU.

    Raises:
        NotStorableError: If it holds something else than tensors and plain types, or is too deep.
    """
    if depth > DEEPEST:
        raise NotStorableError(f"containers more than {DEEPEST} deep")
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise NotStorableError(f"a tensor of layout {value.layout}")
        return value.detach().cpu().contiguous().clone()
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return {_ARRAY: torch.from_numpy(np.array(value))}
    if isinstance(value, Mapping):
        if not all(isinstance(key, str | int) for key in value):
            raise NotStorableError(f"a {type(value).__name__} with keys that are no texts or numbers")
        return {key: to_stored(value[key], depth + 1) for key in value}
    if isinstance(value, list | tuple):
        entries = [to_stored(entry, depth + 1) for entry in value]
        if hasattr(value, "_fields"):
            return {_FIELDS: list(value._fields), _ENTRIES: entries}
        return tuple(entries) if isinstance(value, tuple) else entries
    if value is not None:
        raise NotStorableError(f"a {type(value).__module__}.{type(value).__name__}")
    return None


def from_stored(stored: Any) -> Any:
    """Make the value that :func:`to_stored` was given; a named tuple is one of the same fields."""
    if isinstance(stored, dict) and _ARRAY in stored:
        return stored[_ARRAY].numpy()
    if isinstance(stored, dict) and _FIELDS in stored:
        return collections.namedtuple("Batch", stored[_FIELDS])(
            *map(from_stored, stored[_ENTRIES])
        )  # its fields are known only now
    if isinstance(stored, dict):
        return {key: from_stored(entry) for key, entry in stored.items()}
    return type(stored)(map(from_stored, stored)) if isinstance(stored, list | tuple) else stored


def generators_stored(states: Generators | None) -> dict[str, Any] | None:
    """The states in types that can be stored."""
    if states is None:
        return None
    found: dict[str, Any] = {"torch": states.torch.clone(), "device": states.device, "numpy": None, "python": None}
    if states.numpy is not None:
        name, numbers, *rest = states.numpy
        found["numpy"] = (str(name), torch.from_numpy(numbers.astype(np.int64)), *map(float, rest))
    if states.python is not None:
        version, numbers, gauss = states.python
        found["python"] = (version, list(numbers), gauss)
    return found


def generators_from(found: Any) -> Generators | None:
    """Make the states that :func:`generators_stored` was given."""
    if found is None:
        return None
    numpy, python = found["numpy"], found["python"]
    if numpy is not None:
        name, numbers, place, has_gauss, gauss = numpy
        numpy = (name, numbers.numpy().astype(np.uint32), int(place), int(has_gauss), float(gauss))
    if python is not None:
        version, numbers, gauss = python
        python = (int(version), array("I", numbers), gauss)
    return Generators(found["torch"].to(torch.uint8), found["device"], numpy, python)
