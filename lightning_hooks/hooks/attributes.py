"""Attributes of other people's objects: read without running their code, and exchanged for a while.

``getattr`` may call a property, a descriptor or ``__getattr__``. The weight of a parametrised layer is one: each read computes it,
which advances a spectral norm's power iteration, or draws random numbers where the parametrisation adds noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType, MemberDescriptorType
from typing import Any

import torch
from torch import nn

_PLAIN_CONTAINERS = (dict, list, tuple, set, MappingProxyType)
_REGISTERED = ("_parameters", "_buffers", "_modules")


def stored(holder: object, name: str, default: Any = None) -> Any:
    """What an object holds under a name: in its dictionary or a slot, registered with a module, or as a plain value of its class.

    Of a parametrised tensor that is the one from which it is computed, if there is one. In code that is compiled it is ``getattr``.

    Args:
        holder: Any object.
        name: Of the attribute.
        default: Returned where nothing is stored: the name is unknown, or is a property, another descriptor or a method.
    """
    if torch.compiler.is_compiling():  # the way below cannot be traced
        return getattr(holder, name, default)
    own = contents(holder)
    if name in own:
        return own[name]
    if isinstance(holder, nn.Module):
        for entries in (own.get(registry, {}) for registry in _REGISTERED):
            if name in entries:
                return entries[name]
        modules: Any = own.get("_modules", ())
        parametrized: Any = contents(modules["parametrizations"]).get("_modules", ()) if "parametrizations" in modules else ()
        if name in parametrized:
            return stored(parametrized[name], "original", default)
    for kind in type(holder).__mro__:
        if name in vars(kind):
            value = vars(kind)[name]
            if isinstance(value, MemberDescriptorType):
                return in_slot(value, holder, default)
            return default if hasattr(type(value), "__get__") else value
    return default


def contents(holder: object) -> dict[str, Any]:
    """The dictionary in which an object holds its attributes; empty if it has slots only."""
    try:
        found: dict[str, Any] = object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return {}
    return found


def stored_count(holder: object, name: str) -> int:
    """The whole number above 0 that an object holds under a name, such as ``num_heads``; 0 where there is none."""
    found = stored(holder, name)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 0


def in_training_mode(module: nn.Module) -> bool:
    """Whether a module is in training mode."""
    return bool(stored(module, "training", True))


def entries_of(container: list[Any] | tuple[Any, ...] | set[Any] | Mapping[Any, Any]) -> Iterable[Any]:
    """The entries of a container, the values of a mapping: those that it holds, whatever a subclass makes of them on the way.

    A mapping that is no ``dict`` holds them in containers that are its attributes.
    """
    if type(container) in _PLAIN_CONTAINERS or torch.compiler.is_compiling():  # the methods of a base cannot be traced
        return container.values() if isinstance(container, Mapping) else container
    if isinstance(container, dict):
        return dict.values(container)
    if isinstance(container, Mapping):
        return [value for value in contents(container).values() if isinstance(value, list | tuple | Mapping)]
    base: Any = next(kind for kind in (list, tuple, set) if isinstance(container, kind))
    entries: Iterable[Any] = base.__iter__(container)
    return entries


def in_slot(slot: Any, holder: object, default: Any) -> Any:
    """What an object holds in a slot."""
    try:
        return slot.__get__(holder)
    except AttributeError:  # nothing was assigned yet
        return default


def exchange(holder: object, **values: Any) -> Callable[[], None]:
    """Set attributes of an object in its dictionary, where no ``__setattr__`` sees it; return what puts back those before.

    An attribute that somebody else has exchanged since then stays: what they put there calls ours, or does without it.

    Args:
        holder: Any object with a dictionary.
        **values: The attributes by name.
    """
    own = vars(holder)
    before = {name: own[name] for name in values if name in own}
    own.update(values)

    def put_back() -> None:
        for name in [name for name, value in values.items() if own.get(name) is value]:
            if name in before:
                own[name] = before[name]
            else:
                del own[name]

    return put_back
