"""All that running a training step may change, kept, put back and checked: tensors, attributes, counters, generators, gradients."""

from __future__ import annotations

import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable
from copy import copy
from functools import partial
from operator import attrgetter, methodcaller
from types import MemberDescriptorType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.hooks.attributes import contents, in_slot
from lightning_hooks.hooks.generators import Generators, GeneratorWatch, set_generators
from lightning_hooks.hooks.tensors import copied

MOST_OBJECTS = 300_000  # a model with more attributes, lists and entries than this is not run again
_OUTSIDE = (
    *("lightning", "pytorch_lightning", "lightning_fabric", "lightning_hooks"),
    *("logging", "threading", "concurrent", "weakref", "io", "builtins", "functools", "types"),
)
_OUTSIDE_IN_TORCH = ("torch.utils.data", "torch.optim", "torch.distributed", "torch.cuda", "torch._dynamo", "torch.utils.hooks")
_PLAIN: tuple[type, ...] = (type(None), int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size)
_CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, deque, np.ndarray, random.Random)
TRAINER = ("_trainer", "trainer", "_fabric")  # attributes of a model that lead to its training loop


class NotRestoredError(RuntimeError):
    """Raised where a step cannot be run again and everything put back; the message names what."""


def require(fine: object, otherwise: str) -> None:
    """Raise a :class:`NotRestoredError` with this text, unless all is fine."""
    if not fine:
        raise NotRestoredError(otherwise)


class _Entry(NamedTuple):
    name: str
    read: Callable[[], Any]  # gives what is compared
    mark: Any  # what it gave at first
    put: Callable[[], Any]  # restores it


class ModelSnapshot:
    """What a model holds now, and the generators' states.

    It follows the model's attributes into lists, dictionaries, sets, deques, arrays, generators of random numbers and plain
    objects, and calls no code of theirs. What belongs to the training loop, such as the trainer, loaders and optimizers, is left
    alone.

    Raises:
        NotRestoredError: If the model holds something that cannot be put back, such as an iterator that is under way.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.generators: Generators = GeneratorWatch(device).read()
        self._objects: dict[int, Any] = {}  # keeps the ids valid
        self._entries: list[_Entry] = []
        self._keep(model, "model")
        self._add("the random number generators", lambda: _states(device), lambda: set_generators(self.generators, device))

    def restore(self) -> None:
        """Put everything back."""
        for entry in self._entries:
            entry.put()

    def changed(self) -> list[str]:
        """The names of what is not as it was."""
        return [entry.name for entry in self._entries if entry.read() != entry.mark]

    def _keep(self, root: Any, name: str) -> None:
        waiting = [(root, name)]
        while waiting:
            value, name = waiting.pop()
            if id(value) in self._objects or isinstance(value, _PLAIN):
                continue
            if len(self._objects) >= MOST_OBJECTS:
                raise NotRestoredError(f"the model holds more than {MOST_OBJECTS} objects")
            self._objects[id(value)] = value
            waiting += self._keep_one(value, name)

    def _keep_one(self, value: Any, name: str) -> list[tuple[Any, str]]:
        if isinstance(value, Tensor):
            return self._keep_tensor(value, name)
        if isinstance(value, nn.Module) or _has_plain_attributes(value):
            own, in_slots = contents(value), self._keep_slots(value, name)
            self._keep_mapping(own, name)
            return [(entry, f"{name}.{key}") for key, entry in (*own.items(), *in_slots) if key not in TRAINER]
        if isinstance(value, dict):
            self._keep_mapping(value, name)
            return [(entry, f"{name}[{key!r}]") for key, entry in dict.items(value)]
        if isinstance(value, list | deque):
            entries = list(value)
            self._add(name, lambda: [*map(id, value)], lambda: _refill(value, entries))
            return [(entry, f"{name}[{place}]") for place, entry in enumerate(entries)]
        if isinstance(value, tuple):
            return [(entry, f"{name}[{place}]") for place, entry in enumerate(tuple.__iter__(value))]
        of_numpy = isinstance(value, np.random.Generator | np.random.RandomState)
        numbers = value._bit_generator if of_numpy else value  # what holds their state
        kind = next((kind for kind in _KINDS if isinstance(numbers, kind)), None)
        if kind is not None:
            state_of, compared, put_back = _KINDS[kind]
            state = state_of(numbers)
            self._add(name, lambda: compared(numbers), lambda: put_back(numbers, state))
        elif hasattr(type(value), "__next__"):
            raise NotRestoredError(f"{name} is a {type(value).__name__}, which cannot be put back to where it was")
        return []

    def _keep_tensor(self, tensor: Tensor, name: str) -> list[tuple[Any, str]]:
        values = copied(tensor)
        if values is None:
            self._add(name, partial(_version, tensor), lambda: None)
            return []
        gradient, required = tensor.grad if tensor.is_leaf else None, tensor.requires_grad
        kept = values.detach().clone()

        def put() -> None:
            if not same_bits(values, kept):
                set_values(values, kept)
            if tensor.is_leaf:
                tensor.grad = gradient
                tensor.requires_grad_(required)

        self._add(name, lambda: (same_bits(values, kept), id(tensor.grad) if tensor.is_leaf else 0, tensor.requires_grad), put)
        return [] if gradient is None else [(gradient, f"{name}.grad")]

    def _keep_slots(self, value: Any, name: str) -> list[tuple[str, Any]]:
        held = [(slot, slot.__get__(value)) for slot in _slots(value)]
        for slot, entry in held:
            read = partial(lambda slot: id(slot.__get__(value)), slot)
            self._add(f"{name}.{slot.__name__}", read, partial(slot.__set__, value, entry))
        return [(slot.__name__, entry) for slot, entry in held]

    def _keep_mapping(self, mapping: dict[Any, Any], name: str) -> None:
        items = list(dict.items(mapping))
        kind: type[dict[Any, Any]] = OrderedDict if isinstance(mapping, OrderedDict) else dict

        def read() -> list[tuple[int, int]]:
            return [(id(key), id(entry)) for key, entry in dict.items(mapping)]

        mark = read()

        def put() -> None:
            if read() != mark:
                kind.clear(mapping)
                for key, entry in items:
                    kind.__setitem__(mapping, key, entry)

        self._add(name, read, put)

    def _add(self, name: str, read: Callable[[], Any], put: Callable[[], Any]) -> None:
        self._entries.append(_Entry(name, read, read(), put))


def _states(device: torch.device) -> str:
    now = GeneratorWatch(device).read()
    return repr((now.torch.tolist(), None if now.device is None else now.device.tolist(), now.numpy, now.python))


def _has_plain_attributes(value: Any) -> bool:
    """Whether an object holds its state in attributes, and is not part of the training loop or of torch's own machinery."""
    kind = type(value)
    module = kind.__module__ or ""
    return (
        module.partition(".")[0] not in _OUTSIDE
        and not module.startswith(_OUTSIDE_IN_TORCH)
        and not isinstance(value, _CONTAINERS)
        and not callable(getattr(kind, "__next__", None))
        and bool(contents(value) or _slots(value))
    )


def _slots(value: Any) -> list[Any]:
    members = [member for kind in type(value).__mro__ if "__slots__" in vars(kind) for member in vars(kind).values()]
    unset = object()
    return [each for each in members if isinstance(each, MemberDescriptorType) and in_slot(each, value, unset) is not unset]


def _set_to(value: set[Any], members: set[Any]) -> None:
    if value != members:  # to fill a set again may change its order
        value.clear()
        value.update(members)


def set_values(tensor: Tensor, values: Tensor) -> None:
    """Put values into a tensor, which may have grown since."""
    if (tensor.shape, tensor.dtype) == (values.shape, values.dtype):
        tensor.data.copy_(values)
    else:
        tensor.data = values.clone()


# Of objects of these classes: what gives their state, what of them is compared, and what puts the state back.
_KINDS: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    set: (set, set, _set_to),
    bytearray: (bytes, bytes, lambda value, data: value.__setitem__(slice(None), data)),
    array: (copy, methodcaller("tobytes"), lambda value, state: value.__setitem__(slice(None), state)),
    np.ndarray: (methodcaller("copy"), methodcaller("tobytes"), np.copyto),
    random.Random: (methodcaller("getstate"), methodcaller("getstate"), lambda value, state: value.setstate(state)),
    torch.Generator: (methodcaller("get_state"), lambda value: value.get_state().tolist(), torch.Generator.set_state),
    np.random.BitGenerator: (
        attrgetter("state"),
        lambda value: repr(value.state),
        lambda value, state: setattr(value, "state", state),
    ),
}


def _refill(value: Any, entries: list[Any]) -> None:
    if [*map(id, value)] != [*map(id, entries)]:
        value.clear()
        value.extend(entries)


def _version(tensor: Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return 0 if tensor.is_inference() else tensor._version


def same_bits(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same bits, NaN included, and the same shape and type."""
    alike = tensor.shape == other.shape and tensor.dtype == other.dtype
    whole = (each.detach().resolve_conj().resolve_neg().contiguous() for each in (tensor, other))
    return alike and torch.equal(*(each.view(-1).view(torch.uint8) for each in whole))
