"""All that running a training step may change, kept, put back and checked: tensors, attributes, counters, generators, gradients."""

from __future__ import annotations

import random
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lightning_hooks.hooks.attributes import contents
from lightning_hooks.replay.generators import Generators, GeneratorWatch, set_generators

MOST_OBJECTS = 300_000
"""A model with more attributes, lists and entries than this is not run again."""
_OUTSIDE = (
    *("lightning", "pytorch_lightning", "lightning_fabric", "lightning_hooks"),
    *("logging", "threading", "concurrent", "weakref", "io", "builtins", "functools", "types"),
)
_OUTSIDE_IN_TORCH = ("torch.utils.data", "torch.optim", "torch.distributed", "torch.cuda", "torch._dynamo", "torch.utils.hooks")
_CONTAINERS: tuple[type, ...] = (dict, list, tuple, set, deque, np.ndarray, random.Random)
_TRAINER = {"_trainer", "trainer", "_fabric"}


class NotRestoredError(RuntimeError):
    """Raised where a step cannot be run again and everything put back; the message names what."""


class KeptState:
    """What a model holds now, and the generators' states.

    It follows the model's attributes into lists, dictionaries, sets, deques, arrays, generators of random numbers and plain
    objects, and calls no code of theirs. What belongs to the training loop, such as the trainer, loaders and optimizers, is left
    alone.

    Args:
        model: The model.
        device: Where it is.
        unchanged: Parameters that are checked and not copied: a step is not supposed to write to them.

    Raises:
        NotRestoredError: If the model holds something that cannot be put back, such as an iterator that is under way.
    """

    def __init__(self, model: Any, device: torch.device, unchanged: Iterable[Tensor] = ()) -> None:
        self._device, self._unchanged = device, {id(tensor) for tensor in unchanged}
        self.generators: Generators = GeneratorWatch(device).read()
        self._objects: dict[int, Any] = {}  # keeps the ids valid
        self._puts: list[tuple[str, Callable[[], None]]] = []
        self._marks: list[tuple[str, Callable[[], Any], Any]] = []
        self._keep(model, "model")

    def restore(self) -> None:
        """Put everything back."""
        for _, put in self._puts:
            put()
        set_generators(self.generators, self._device)

    def changed(self) -> list[str]:
        """The names of what is not as it was."""
        found = [name for name, read, mark in self._marks if read() != mark]
        now = GeneratorWatch(self._device).read()
        same = torch.equal(now.torch, self.generators.torch) and repr(now.numpy) == repr(self.generators.numpy)
        same = same and repr(now.python) == repr(self.generators.python)
        same = same and (now.device is None or self.generators.device is None or torch.equal(now.device, self.generators.device))
        return found if same else [*found, "the random number generators"]

    # One kind of object each. `put` restores it, `read` says what it is now.

    def _keep(self, root: Any, name: str) -> None:
        waiting = [(root, name)]
        while waiting:
            value, name = waiting.pop()
            if id(value) in self._objects or _is_plain(value):
                continue
            if len(self._objects) >= MOST_OBJECTS:
                raise NotRestoredError(f"the model holds more than {MOST_OBJECTS} objects")
            self._objects[id(value)] = value
            waiting += self._keep_one(value, name)

    def _keep_one(self, value: Any, name: str) -> list[tuple[Any, str]]:
        """Keep an object; return what it holds."""
        if isinstance(value, Tensor):
            return self._keep_tensor(value, name)
        if isinstance(value, nn.Module) or _has_plain_attributes(value):
            own = contents(value)
            self._keep_mapping(own, name)
            return [(entry, f"{name}.{key}") for key, entry in own.items() if key not in _TRAINER]
        if isinstance(value, dict):
            self._keep_mapping(value, name)
            return [(entry, f"{name}[{key!r}]") for key, entry in dict.items(value)]
        if isinstance(value, list | deque):
            copy = list(value)
            self._add(name, lambda: _ids(value), lambda: _refill(value, copy))
            return [(entry, f"{name}[{place}]") for place, entry in enumerate(copy)]
        if isinstance(value, tuple):
            return [(entry, f"{name}[{place}]") for place, entry in enumerate(tuple.__iter__(value))]
        if isinstance(value, set):
            members = set(value)
            self._add(name, lambda: set(value), lambda: _set_to(value, members))
        elif isinstance(value, bytearray):
            data = bytes(value)
            self._add(name, lambda: bytes(value), lambda: value.__setitem__(slice(None), data))
        elif isinstance(value, np.ndarray):
            array = value.copy()
            self._add(name, lambda: zlib.crc32(np.ascontiguousarray(value).tobytes()), lambda: np.copyto(value, array))
        elif isinstance(value, torch.Generator):
            state = value.get_state()
            self._add(name, lambda: _bits(value.get_state()), lambda: value.set_state(state) and None)
        elif isinstance(value, random.Random):
            numbers = value.getstate()
            self._add(name, value.getstate, lambda: value.setstate(numbers))
        elif isinstance(value, np.random.Generator | np.random.RandomState):
            bits: Any = value.bit_generator if isinstance(value, np.random.Generator) else value._bit_generator
            held = bits.state
            self._add(name, lambda: repr(bits.state), lambda: setattr(bits, "state", held))
        elif hasattr(type(value), "__next__"):
            raise NotRestoredError(f"{name} is a {type(value).__name__}, which cannot be put back to where it was")
        return []

    def _keep_tensor(self, tensor: Tensor, name: str) -> list[tuple[Any, str]]:
        gradient, required = tensor.grad if tensor.is_leaf else None, tensor.requires_grad
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
            self._add(name, lambda: tensor._version, lambda: None)
            return []
        mark = _bits(tensor)
        copy = None if id(tensor) in self._unchanged else tensor.detach().clone()

        def put() -> None:
            if copy is not None and _bits(tensor) != mark:
                tensor.data.copy_(copy)
            if tensor.is_leaf:
                tensor.grad = gradient
                tensor.requires_grad_(required)

        self._add(name, lambda: (_bits(tensor), id(tensor.grad) if tensor.is_leaf else 0, tensor.requires_grad), put)
        return [] if gradient is None else [(gradient, f"{name}.grad")]

    def _keep_mapping(self, mapping: dict[Any, Any], name: str) -> None:
        items = list(dict.items(mapping))
        marks = [(id(key), id(entry)) for key, entry in items]

        def put() -> None:
            if [(id(key), id(entry)) for key, entry in dict.items(mapping)] != marks:
                (OrderedDict if isinstance(mapping, OrderedDict) else dict).clear(mapping)
                for key, entry in items:
                    (OrderedDict if isinstance(mapping, OrderedDict) else dict).__setitem__(mapping, key, entry)

        self._add(name, lambda: [(id(key), id(entry)) for key, entry in dict.items(mapping)], put)
        self._objects[id(items)] = items

    def _add(self, name: str, read: Callable[[], Any], put: Callable[[], Any]) -> None:
        self._puts.append((name, put))
        self._marks.append((name, read, read()))


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, int | float | complex | str | bytes | type | torch.dtype | torch.device | torch.Size)


def _has_plain_attributes(value: Any) -> bool:
    """Whether an object holds its state in attributes, and is not part of the training loop or of torch's own machinery."""
    kind = type(value)
    module = kind.__module__ or ""
    if module.partition(".")[0] in _OUTSIDE or module.startswith(_OUTSIDE_IN_TORCH):
        return False
    return not isinstance(value, _CONTAINERS) and not callable(getattr(kind, "__next__", None)) and bool(contents(value))


def _ids(values: Iterable[Any]) -> list[int]:
    return [id(value) for value in values]


def _set_to(value: set[Any], members: set[Any]) -> None:
    value.clear()
    value.update(members)


def _refill(value: Any, entries: list[Any]) -> None:
    if _ids(value) != _ids(entries):
        value.clear()
        value.extend(entries)


def _bits(tensor: Tensor) -> Any:
    """A hash of a tensor's bits, with its shape and type."""
    plain = tensor.detach()
    shape = tuple(plain.shape), plain.dtype
    if not plain.numel():
        return shape
    flat = plain.contiguous().view(-1).view(torch.uint8)
    if flat.device.type == "cpu":
        return *shape, zlib.crc32(flat.numpy().data)
    whole = flat[: flat.numel() // 4 * 4].view(torch.int32).long()
    places = torch.arange(1, whole.numel() + 1, device=whole.device)
    return *shape, int(whole.sum()), int((whole * places).sum()), flat[flat.numel() // 4 * 4 :].tolist()
