"""Short descriptions of a module's arguments and outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.tensors import MAX_DEPTH, plain_values
from lightning_hooks.statistics import Column, summarize


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor or other value that was passed.

    Attributes:
        name: The keyword and the path in containers: ``mask``, ``[0]``, ``.logits``, ``['a'][1]``; "" without either.
        kind: The dtype of a tensor, such as ``float32``; a short text for another value.
        shape: The shape of a tensor; None for another value.
        device: The device of a tensor.
        requires_grad: Whether it is part of a graph.
        statistics: ``min``, ``max``, ``mean``, ``std`` of its finite values and ``nonfinite``, the number of others; None unless
            requested.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    device: str = ""
    requires_grad: bool = False
    statistics: dict[str, float] | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return self.kind
        text = f"{self.kind}[{', '.join(map(str, self.shape))}]"
        if self.device != "cpu":
            text += f" {self.device}"
        if self.statistics is not None:
            text += " (" + ", ".join(f"{name} {value:.4g}" for name, value in self.statistics.items() if name != "nonfinite")
            nonfinite = self.statistics["nonfinite"]
            text += f", {nonfinite:.0f} non-finite)" if nonfinite else ")"
        return text


def describe(value: Any, name: str = "", statistics: bool = False, depth: int = 0) -> list[TensorInfo]:
    """Describe every value in a module's arguments or output, containers included.

    Args:
        value: Any object.
        name: Its name.
        statistics: Whether to read the values of tensors, which waits for the device.
        depth: The current depth of the search.
    """
    if isinstance(value, Tensor):
        return [_tensor(value, name, statistics)]
    if isinstance(value, PackedSequence):
        return describe(value.data, f"{name}.data", statistics, depth + 1)
    entries = _entries(value) if depth < MAX_DEPTH else None
    if entries is None:
        return [TensorInfo(name, _short(value))]
    return [info for key, entry in entries for info in describe(entry, f"{name}{key}", statistics, depth + 1)]


def _entries(value: Any) -> list[tuple[str, Any]] | None:
    """The (path, entry) pairs of a container; None for another value."""
    if isinstance(value, Mapping):
        dotted = hasattr(type(value), "to_tuple")  # a ModelOutput of transformers
        return [(f".{key}" if dotted else f"[{key!r}]", entry) for key, entry in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{key}", entry) for key, entry in zip(value._fields, value, strict=True)]
    if isinstance(value, tuple | list):
        return [(f"[{place}]", entry) for place, entry in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", stored(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 20 else value[:17] + "...")
    return type(value).__name__


def _tensor(tensor: Tensor, name: str, statistics: bool) -> TensorInfo:
    numbers = None
    if statistics and tensor.is_floating_point():
        try:
            numbers = _numbers(tensor)
        except RuntimeError:
            numbers = None  # there are no values to read: under torch.func.vmap, on the meta device
    kind = str(tensor.dtype).removeprefix("torch.")
    kind = kind if tensor.layout == torch.strided else f"{str(tensor.layout).removeprefix('torch.')} {kind}"
    return TensorInfo(name, kind, tuple(_size(tensor)), str(tensor.device), tensor.requires_grad, numbers)


def _size(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape) if not tensor.is_nested else (tensor.size(0),)  # the other sizes of a nested tensor vary


def _numbers(tensor: Tensor) -> dict[str, float]:
    row = summarize(plain_values(tensor)).tolist()
    count = row[Column.COUNT]
    nothing = math.nan if not count else 0.0
    return {
        "min": row[Column.MIN] + nothing,
        "max": row[Column.MAX] + nothing,
        "mean": row[Column.MEAN] + nothing,
        "std": math.sqrt(row[Column.M2] / count) if count else math.nan,
        "nonfinite": row[Column.NONFINITE],
    }
