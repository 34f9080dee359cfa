"""Finding the tensors in whatever a module returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence

_PLAIN = (Tensor, Parameter)

MAX_DEPTH = 8
"""Containers nested deeper than this are not looked into; it also ends a container that holds itself."""


def tensors_in(output: Any, depth: int = 0) -> Iterator[Tensor]:
    """Yield every tensor in a module's output, each object once per container level it is met at, depth first.

    Looks into tuples, lists, named tuples, mappings (so also transformers' ``ModelOutput``), dataclasses and packed
    sequences (their data), nested up to ``MAX_DEPTH``. Anything else holds no tensors as far as we can tell.

    Args:
        output: What a module returned or was given.
        depth: How deep the walk is already.

    Yields:
        The tensors, of any dtype and layout.
    """
    if isinstance(output, Tensor):
        yield output
    elif depth >= MAX_DEPTH or output is None:
        return
    elif isinstance(output, PackedSequence):
        yield output.data
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value, depth + 1)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from tensors_in(value, depth + 1)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for entry in dataclasses.fields(output):
            yield from tensors_in(getattr(output, entry.name, None), depth + 1)


def float_tensors(output: Any) -> list[Tensor]:
    """Return the real floating-point tensors in ``output``, each object once, in order.

    Integer, boolean, complex and quantised tensors have no statistics here and are passed over.
    """
    if type(output) is Tensor:  # the common case, without the walk
        return [output] if output.is_floating_point() else []
    found: list[Tensor] = []
    known: set[int] = set()
    compiling = torch.compiler.is_compiling()
    for tensor in tensors_in(output):
        if not tensor.is_floating_point():
            continue
        if compiling:  # a traced tensor has no id
            known_already = any(tensor is other for other in found)
        else:
            known_already = id(tensor) in known
            known.add(id(tensor))
        if not known_already:
            found.append(tensor)
    return found


def plain_values(tensor: Tensor) -> Tensor:
    """Return the numbers of ``tensor`` as a plain dense tensor outside autograd, sharing memory where it can.

    A sparse tensor gives its stored (coalesced) values, a nested one its buffer, a distributed one its local shard.

    Zeros and negatives that torch marks and does not compute are computed. Where the storage was freed (as offloading optimizers
    do with gradients) there are no numbers: the answer is empty.

    Args:
        tensor: A floating-point tensor of any layout or subclass.

    Returns:
        A plain ``torch.Tensor``; its shape is that of ``tensor`` where the layout is dense and there are numbers.
    """
    values = tensor.detach()
    # A traced tensor is plain, and layouts may not be asked for in a traced backward.
    if torch.compiler.is_compiling() or in_memory(values):
        return values
    if values.is_nested:
        return _computed(values.values())
    if values.layout == torch.sparse_coo:
        return _computed(values.coalesce().values())
    if values.layout != torch.strided:
        return _computed(values.values())
    if type(values) is not Tensor:  # a distributed tensor, one that is still under way between processes, a subclass
        to_local = getattr(values, "to_local", None)
        values = values if to_local is None else to_local()
        trigger_wait = getattr(values, "trigger_wait", None)
        values = values if trigger_wait is None else trigger_wait()
        values = values if type(values) is Tensor else values.as_subclass(Tensor)
    return _computed(values)


def in_memory(found: object) -> TypeGuard[Tensor]:
    """Whether ``found`` is a plain, strided tensor whose numbers can be read where they lie."""
    return (
        type(found) in _PLAIN
        and found.layout is torch.strided  # type: ignore[attr-defined]  # mypy does not follow the line above
        and not found.is_nested  # type: ignore[attr-defined]
        and not found.is_neg()  # type: ignore[attr-defined]
        and found.data_ptr() != 0  # type: ignore[attr-defined]  # it was freed, or torch keeps none for some zeros
    )


def _computed(values: Tensor) -> Tensor:
    """The numbers of a strided tensor, in memory."""
    if values._is_zerotensor():  # it has no public name
        return values.clone()
    if values.is_neg():
        return values.resolve_neg()
    return values.new_empty(0) if is_freed(values) else values


def dense(values: Tensor) -> bool:
    """Whether the values fill their memory without gaps, in whatever order of dimensions."""
    if values.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(values.stride(), values.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as the pairs of its real and imaginary parts, of the same memory; any other as it is."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def is_freed(tensor: Tensor) -> bool:
    """Whether the storage of a plain tensor was freed, so that it has a shape and no numbers: reading them ends the process."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and tensor.data_ptr() == 0
        and tensor.numel() > 0
        and not tensor._is_zerotensor()
    )
