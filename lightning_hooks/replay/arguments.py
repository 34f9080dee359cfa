"""The arguments of an operation of a step that is run again, in numbers: read at once, since the values may be written over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.diagnostics.nonfinite.bad_step import Operand
from lightning_hooks.diagnostics.nonfinite.operations import POINTS
from lightning_hooks.hooks.tensors import has_values, tensors_in

_REDUCE = ("softmax", "log_softmax", "logsumexp", "std", "var", "std_mean", "var_mean")


def arguments_of(
    name: str, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Operand, ...], dict[str, Any]]:
    """The tensors that an operation was given, and its settings."""
    given = dict(zip((one.name for one in schema.arguments), args, strict=False)) | dict(kwargs)
    tensors = [(key, tensor) for key, value in given.items() for tensor in tensors_in(value)]
    settings: dict[str, Any] = {key: value for key, value in given.items() if isinstance(value, bool | int | float)}
    settings |= {"dtype": str(given["dtype"]).removeprefix("torch.")} if isinstance(given.get("dtype"), torch.dtype) else {}
    dims = given.get("dim")
    settings |= {"dims": tuple(dims)} if isinstance(dims, list | tuple) and all(isinstance(one, int) for one in dims) else {}
    first = tensors[0][1] if tensors else None
    with suppress(IndexError, RuntimeError, TypeError, ValueError):  # arguments that the operation itself raises for
        if first is not None and first.is_floating_point() and first.layout == torch.strided and first.numel():
            if name in _REDUCE:
                settings |= _along(first, settings.get("dims", settings.get("dim")))
            elif name == "ctc_loss":
                settings |= _alignment(**given)
            elif name.startswith("nll_loss") and isinstance(target := given.get("target"), Tensor):
                settings["used"] = int((target != settings.get("ignore_index", -100)).sum())
    return tuple(_measured(key, tensor, name in POINTS or name == "pow") for key, tensor in tensors), settings


def _measured(name: str, tensor: Tensor, points: bool) -> Operand:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), () if tensor.is_nested else tuple(map(int, tensor.shape))
    if not has_values(tensor) or not tensor.numel() or tensor.is_complex() or tensor.dtype == torch.bool:
        return Operand(name, dtype, shape)
    values = tensor.detach()
    finite = values[torch.isfinite(values)] if values.is_floating_point() else values
    low, high = (float(edge) for edge in torch.aminmax(finite)) if finite.numel() else (math.nan, math.nan)
    found = {"nan": values.isnan(), "inf": values.isposinf(), "-inf": values.isneginf()} if values.is_floating_point() else {}
    if points:
        found |= {"zero": values == 0, "negative": values < 0, "outside": (values < 0) | (values > 1)}
        found |= {"one": values.abs() == 1, "beyond": values.abs() > 1}
    counts = {word: count for word, where in found.items() if (count := int(where.sum()))}
    return Operand(name, dtype, shape, low, high, counts)


def _along(tensor: Tensor, dim: Any) -> dict[str, Any]:
    """What lies along the dimensions that an operation reduces: how many slices, of what size, and what they hold.

    A mask of queries in place of keys leaves some rows of a sample empty, and hides nothing of the others.
    """
    dims = tuple(range(tensor.dim())) if dim in (None, ()) else (dim,) if isinstance(dim, int) else tuple(dim)
    low, high = tensor.amin(dims), tensor.amax(dims)
    empty, clear = high.isneginf(), ~low.isneginf()
    queries = empty.dim() > 1 and bool((empty.any(-1) & (empty | clear).all(-1) & clear.any(-1)).any())
    count = low.numel()
    return {"slices": count, "size": tensor.numel() // max(count, 1), "empty": int(empty.sum()), "queries": queries}


def _alignment(targets: Any = None, input_lengths: Any = (), target_lengths: Any = (), **_: Any) -> dict[str, Any]:
    """The first sequence of a ``ctc_loss`` that is too short for its target: a repeated label needs a blank in between."""
    lengths, wanted = (torch.as_tensor(each).flatten().tolist() for each in (input_lengths, target_lengths))
    start = 0
    for row, (length, target_length) in enumerate(zip(lengths, wanted, strict=True)):
        labels = targets[row, :target_length] if targets.dim() == 2 else targets[start : start + target_length]
        start += target_length
        repeats = int((labels[1:] == labels[:-1]).sum())
        if target_length + repeats > length:
            return {"row": row, "steps": length, "labels": target_length, "repeats": repeats}
    return {}
