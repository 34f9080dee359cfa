"""Modules and tensors that a model holds where it does not know of them: in plain containers, or as plain attributes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

from lightning_hooks.hooks.attributes import contents, entries_of, stored
from lightning_hooks.hooks.selection import clean_name

MOST = 256
"""Entries of a container that are inspected."""

_OF_TORCH = frozenset(vars(nn.Module()))


def unregistered_modules(root: nn.Module) -> dict[str, list[nn.Module]]:
    """Find modules in lists, tuples, sets and dictionaries, or in such containers in them, that are not in ``root.modules()``.

    A module counts only if it has a parameter that requires a gradient and is no parameter of ``root``: what is registered under
    another name, and what is frozen and hidden on purpose, does not.

    Args:
        root: The model.

    Returns:
        The name of the attribute, such as ``net.blocks``, to the outermost modules in it.
    """
    known = {id(module) for module in root.modules()}
    found: dict[str, list[nn.Module]] = {}
    for name, entries in _attributes(root):
        inside = (entry for entry in entries if isinstance(entry, nn.Module) and id(entry) not in known)
        hidden = [module for module in inside if own_parameters(module, root)]
        if hidden:
            found[name] = list(dict.fromkeys(hidden))
    return found


def unregistered_tensors(root: nn.Module) -> dict[str, list[Tensor]]:
    """Find tensors that require a gradient and are no parameters of ``root``: plain attributes of modules, or in containers there.

    Args:
        root: The model.

    Returns:
        The name of the attribute, such as ``net.codes``, to the tensors in it. What was computed from others does not count, nor
        what FSDP flattens.
    """
    known = {id(parameter) for parameter in root.parameters()}
    found: dict[str, list[Tensor]] = {}
    for name, entries in _attributes(root):
        tensors = (entry for entry in entries if isinstance(entry, Tensor))
        hidden = [tensor for tensor in tensors if id(tensor) not in known and _learns(tensor)]
        if hidden:
            found[name] = hidden
    return found


def own_parameters(module: nn.Module, root: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module that require a gradient and are none of ``root``."""
    known = {id(parameter) for parameter in root.parameters()}
    return [parameter for parameter in module.parameters() if parameter.requires_grad and id(parameter) not in known]


def _learns(tensor: Tensor) -> bool:
    return tensor.requires_grad and tensor.is_leaf and not stored(tensor, "_is_flat_param")


def _attributes(root: nn.Module) -> Iterator[tuple[str, list[nn.Module | Tensor]]]:
    """The plain attributes of modules that are tensors or containers, by their names, each with what is in it."""
    for name, holder in root.named_modules():
        for attribute, value in contents(holder).items():
            if attribute not in _OF_TORCH and isinstance(value, Tensor | list | tuple | set | dict):
                entries: list[nn.Module | Tensor] = [value] if isinstance(value, Tensor) else [*_held_in(value)]
                yield clean_name(f"{name}.{attribute}" if name else attribute), entries


def _held_in(container: Any, depth: int = 2) -> Iterator[nn.Module | Tensor]:
    for value in islice(entries_of(container), MOST):
        if isinstance(value, nn.Module | Tensor):
            yield value
        elif depth > 1 and isinstance(value, list | tuple | set | dict):
            yield from _held_in(value, depth - 1)
