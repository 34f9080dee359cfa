"""Tensors inside any output of a module, and the numbers that other people's modules and optimizers hold, where there are any."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.hooks.attributes import entries_of, stored

_PLAIN = (Tensor, Parameter)
_FUNCTIONS = (Tensor.__torch_function__.__func__, Parameter.__torch_function__)  # type: ignore[attr-defined]  # of no class of others
# Not floats and integers of 8 bits and less that are only stored, complex halves, bits and quantised numbers.
_COMPUTED = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    }
)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

MAX_DEPTH = 8  # containers nested deeper than this are not searched; this also ends the search of a container that contains itself


def tensors_in(output: Any, depth: int = 0) -> Iterator[Tensor]:
    """Yield every tensor in a module's output, depth first; an object that occurs several times is yielded each time.

    Searches tuples, lists, named tuples, mappings (such as transformers' ``ModelOutput``), dataclasses and packed sequences (their
    data), nested up to ``MAX_DEPTH``: what they hold, not what a class of the user's computes when it is asked. Other objects are
    skipped.

    Args:
        output: What a module returned or received.
        depth: The current depth of the search.

    Yields:
        The tensors, of any dtype and layout.
    """
    if isinstance(output, Tensor):
        yield output
    elif depth >= MAX_DEPTH or output is None:
        return
    elif isinstance(output, PackedSequence):
        yield output.data
    elif isinstance(output, Mapping | tuple | list):
        for value in entries_of(output):
            yield from tensors_in(value, depth + 1)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for entry in dataclasses.fields(output):
            yield from tensors_in(stored(output, entry.name), depth + 1)


def float_tensors(output: Any) -> list[Tensor]:
    """Return the real floating-point tensors in ``output``, each object once, in order.

    Integer, boolean, complex and quantised tensors are skipped: they have no statistics here.
    """
    if type(output) is Tensor:  # the common case, without a search
        return [output] if output.is_floating_point() else []
    floating = [tensor for tensor in tensors_in(output) if tensor.is_floating_point()]
    if not torch.compiler.is_compiling():
        return list({id(tensor): tensor for tensor in floating}.values())
    found: list[Tensor] = []
    for tensor in floating:  # a traced tensor has no id
        if not any(tensor is other for other in found):
            found.append(tensor)
    return found


class UnreadableError(RuntimeError):
    """A tensor stands for others and has no values of its own: under ``torch.func``, a fake tensor, one on the meta device."""

    def __init__(self, values: object) -> None:
        super().__init__(f"an object of type {type(values).__name__} has no values in memory")


def plain_values(tensor: Tensor) -> Tensor:
    """Return the values of ``tensor`` as a plain dense tensor outside autograd, sharing memory where possible.

    A sparse tensor gives its stored (coalesced) values, a nested one its buffer, a distributed one its local shard.

    Lazy zeros and negatives are computed. A tensor whose storage was freed (as offloading optimizers do with gradients) has no
    values: the result is empty.

    Args:
        tensor: A floating-point tensor of any layout or subclass.

    Returns:
        A plain ``torch.Tensor``, of the shape of ``tensor`` where the layout is dense and the storage exists; of a nested tensor
        ``(tokens, features)`` where its last dimension has one size.

    Raises:
        UnreadableError: It stands for other tensors.
    """
    values = tensor.detach()
    # A traced tensor is plain, and a traced backward cannot ask for layouts.
    if torch.compiler.is_compiling() or in_memory(values):
        return values
    if values.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(values):  # it has no public name
        raise UnreadableError(values)
    if values.is_nested:
        return _computed(_buffer(values))
    if values.layout == torch.sparse_coo:
        return _computed(values.coalesce().values())
    if values.is_mkldnn:
        return values.to_dense()
    if values.layout != torch.strided:
        return _computed(values.values())
    if type(values) is not Tensor:  # a distributed tensor, one whose collective is still running, a subclass
        for name in ("to_local", "trigger_wait"):
            method = getattr(values, name, None)
            values = values if method is None else method()
        values = values if type(values) is Tensor else values.as_subclass(Tensor)
    return _computed(values)


def in_memory(found: object) -> TypeGuard[Tensor]:
    """Whether ``found`` is proved to be a plain, strided tensor whose values can be read in place, at its address.

    False without a storage: of other layouts, of what ``torch.func`` wraps, of zeros that torch does not keep, where it was freed.
    """
    if type(found) not in _PLAIN:
        return False
    tensor: Any = found
    try:
        # Of a view its storage is asked: its own address is not 0 where what it is a view of was freed. Not of others: the object
        # that torch makes of a storage stays as long as that does.
        at = (0 if tensor.storage_offset() else tensor.data_ptr()) or tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return False
    return at != 0 and not tensor.is_nested and not tensor.is_neg()


def addresses_of(tensors: Iterable[Tensor], anywhere: bool = False) -> list[int]:
    """Where the values of tensors lie in the host's memory; 0 for one that is not proved to hold them there without gaps.

    It asks what :func:`in_memory` and :func:`dense` ask, without a call for each tensor.

    Args:
        tensors: The tensors.
        anywhere: Whether they may lie in any memory, with gaps.
    """
    found = []
    for tensor in tensors:
        at = 0
        if type(tensor) in _PLAIN and (anywhere or tensor.is_cpu):
            try:
                freed = tensor.storage_offset() and not tensor.untyped_storage().data_ptr()
                at = 0 if freed else tensor.data_ptr()
            except RuntimeError:
                at = 0
            if at and (tensor.is_nested or tensor.is_neg() or not (anywhere or tensor.is_contiguous() or dense(tensor))):
                at = 0
        found.append(at)
    return found


def all_values(tensors: Sequence[Tensor], real: bool = False) -> list[Tensor]:
    """The :func:`plain_values` of tensors, without a call for one that lies in memory; ``real``: with :func:`as_real`."""
    found = []
    for tensor, at in zip(tensors, addresses_of(tensors, anywhere=True), strict=True):
        values = tensor.detach() if at else plain_values(tensor)
        found.append(as_real(values) if real and values.is_complex() else values)
    return found


def _buffer(nested: Tensor) -> Tensor:
    """All values of a nested tensor: of padded sequences ``(tokens, features)``."""
    values = nested.values()
    if values.dim() != 1 or not nested.is_contiguous():
        return values
    try:
        return values.view(-1, nested.size(-1))
    except RuntimeError:  # its last dimension has several sizes
        return values


def _computed(values: Tensor) -> Tensor:
    """The values of a strided tensor, in memory."""
    if type(values) not in _PLAIN:  # a subclass that wraps others, or a fake tensor
        raise UnreadableError(values)
    if values._is_zerotensor():  # it has no public name
        return values.clone()
    if values.is_neg():
        return values.resolve_neg()
    return values.new_empty(0) if is_freed(values) else values


def dense(values: Tensor) -> bool:
    """Whether the values fill their memory without gaps, in any order of dimensions."""
    if values.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(values.stride(), values.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def as_real(tensor: Tensor) -> Tensor:
    """Return a complex tensor as pairs of real and imaginary parts in the same memory; another tensor unchanged."""
    return torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor


def is_freed(tensor: Tensor) -> bool:
    """Whether the storage of a plain tensor was freed, so that it has a shape and no values: reading them ends the process."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not in_memory(tensor)
        and tensor.numel() > 0
        and tensor.untyped_storage().nbytes() == 0
    )


def has_values(tensor: Tensor) -> bool:
    """Whether torch computes with the values of a tensor, and they are there: not lazy, not on the meta device, nor freed."""
    return is_computed(tensor) and not (tensor.is_meta or is_freed(tensor))


def is_computed(tensor: Tensor) -> bool:
    """Whether torch computes with values of this class, type and layout; of a subclass with operators of its own only a DTensor."""
    kind = type(tensor)
    own = kind not in _PLAIN and (nn.parameter.is_lazy(tensor) or (_has_operators(kind) and not is_distributed(tensor)))
    return not own and tensor.dtype in _COMPUTED and tensor.layout is torch.strided and not tensor.is_nested


def computed(tensors: Iterable[Tensor]) -> list[bool]:
    """:func:`is_computed` of each, without a call for a plain one."""
    return [
        (type(one) in _PLAIN and one.dtype in _COMPUTED and one.layout is torch.strided and not one.is_nested) or is_computed(one)
        for one in tensors
    ]


def copied(tensor: Tensor) -> Tensor | None:
    """What torch copies and compares of a tensor: itself, or its memory as integers; None where neither is there."""
    lies = in_memory(tensor)
    if tensor.dtype in _COMPUTED if lies else has_values(tensor):
        return tensor
    integers = _INTEGERS.get(tensor.dtype.itemsize)
    return None if integers is None or not lies or tensor.is_quantized else tensor.detach().view(integers)


def is_distributed(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor, by the attributes its class has, since the class would take a while to import."""
    return hasattr(type(tensor), "placements") and hasattr(type(tensor), "device_mesh")


def _has_operators(kind: type[Tensor]) -> bool:
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    return kind.__torch_dispatch__ is not Tensor.__torch_dispatch__ or function not in _FUNCTIONS


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


def number(scalar: Tensor) -> float:
    """Read a 0-d CPU tensor from its memory."""
    value: Any = scalar.tolist()
    return float(value)
