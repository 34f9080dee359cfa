"""A batch in JSON's types and tensors, and back: no code of the batch's is run."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

DEEPEST = 16


class CapsuleError(ValueError):
    """Raised for a capsule that cannot be read, or does not fit; nothing of it is run."""


def check(fine: bool, text: str) -> None:
    """Raise a :class:`CapsuleError` with this text, unless all is fine."""
    if not fine:
        raise CapsuleError(text)


class NotStorableError(TypeError):
    """Raised for a batch with an object that is neither a tensor, an array, a number, a text nor a container of these."""


def to_stored(value: Any, tensors: dict[str, Tensor], name: str, depth: int = 0) -> Any:
    """Describe a value in JSON types, and add its tensors to ``tensors``, by names that begin with ``name``.

    Raises:
        NotStorableError: If it holds something else than tensors and plain types, or is too deep.
    """
    if depth > DEEPEST:
        raise NotStorableError(f"containers more than {DEEPEST} deep")
    if value is None or isinstance(value, bool | int | str) or type(value) is float:
        return {"is": "float", "text": repr(value)} if isinstance(value, float) else {"is": "plain", "value": value}
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise NotStorableError(f"a tensor of layout {value.layout}")
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"is": "tensor", "name": name}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        tensors[name] = torch.from_numpy(np.array(value))
        return {"is": "array", "name": name}

    def inner(entry: Any) -> Any:
        return to_stored(entry, tensors, f"{name}.{len(tensors)}", depth + 1)

    if isinstance(value, Mapping):
        keys = list(value)
        if not all(isinstance(key, str | int) for key in keys):
            raise NotStorableError(f"a {type(value).__name__} with keys that are no texts or numbers")
        return {"is": "dict", "entries": [[key, inner(value[key])] for key in keys]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"is": "named", "fields": list(value._fields), "entries": [inner(entry) for entry in value]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {"is": kind, "entries": [inner(entry) for entry in value]}
    raise NotStorableError(f"a {type(value).__module__}.{type(value).__name__}")


def from_stored(plain: Any, tensors: Mapping[str, Tensor], depth: int = 0) -> Any:
    """Make the value that :func:`to_stored` described.

    Raises:
        CapsuleError: If it is not such a description.
    """
    kind = plain.get("is") if isinstance(plain, dict) else None
    check(depth <= DEEPEST and kind is not None, f"expected the description of a batch; got {str(plain)[:100]!r}.")
    entries, name = plain.get("entries", []), plain.get("name", "")
    if kind in ("tensor", "array"):
        check(isinstance(name, str) and name in tensors, f"the tensor {name!r} of the batch is missing.")
        return tensors[name] if kind == "tensor" else tensors[name].numpy()
    if kind == "plain" and (plain.get("value") is None or isinstance(plain["value"], bool | int | str)):
        return plain.get("value")
    if kind == "float" and isinstance(plain.get("text"), str):
        try:
            return float(plain["text"])
        except ValueError:
            raise CapsuleError(f"expected a number; got {plain['text'][:50]!r}.") from None
    if kind == "dict" and isinstance(entries, list):
        fine = all(isinstance(e, list) and len(e) == 2 and isinstance(e[0], str | int) for e in entries)
        check(fine, "a dictionary of the batch is not one.")
        return {key: from_stored(entry, tensors, depth + 1) for key, entry in entries}
    if kind in ("list", "tuple", "named") and isinstance(entries, list):
        values = [from_stored(entry, tensors, depth + 1) for entry in entries]
        if kind != "named":
            return values if kind == "list" else tuple(values)
        try:
            return collections.namedtuple("Batch", plain.get("fields"))(*values)  # its fields are known only now
        except (TypeError, ValueError):
            raise CapsuleError("a named tuple of the batch is not one.") from None
    raise CapsuleError(f"a batch cannot hold {str(kind)[:50]!r}.")
