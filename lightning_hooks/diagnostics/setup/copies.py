"""Copies of modules that stand still: a target network that is never updated, a layer that was copied where it was to be shared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from lightning_hooks.diagnostics.setup.initial import on_host
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import as_real, has_values
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.weight_sample import is_distributed


class ModuleCopy(NamedTuple):
    """Two modules with the same weights when training started, of which no optimizer holds the second."""

    original: str
    copy: str
    sums: Sequence[float]  # of the weights of the copy, then


def copies_in(model: nn.Module, optimizers: Iterable[Any]) -> list[ModuleCopy]:
    """Find the modules that are copies of one that an optimizer holds, and that no optimizer holds themselves.

    Compared are modules of one class whose parameters have the same names and shapes, with a weight of two dimensions or more.
    Where all parameters are in optimizers, as they usually are, nothing is read; else some numbers of such pairs are.

    Args:
        model: The model.
        optimizers: The optimizers.
    """
    held = {id(p) for optimizer in optimizers for group in getattr(optimizer, "param_groups", ()) for p in group["params"]}
    if all(id(parameter) in held for parameter in model.parameters()):
        return []
    originals: dict[tuple[Any, ...], list[tuple[str, nn.Module]]] = {}
    free: list[tuple[tuple[Any, ...], str, nn.Module]] = []
    for name, module in model.named_modules():
        parameters = dict(module.named_parameters())
        known = all(has_values(p) and not is_distributed(p) for p in parameters.values())
        if known and any(p.dim() > 1 for p in parameters.values()):
            key = (type(module), *((inner, p.shape) for inner, p in parameters.items()))
            if all(id(p) in held for p in parameters.values()):
                originals.setdefault(key, []).append((clean_name(name), module))
            elif not any(id(p) in held for p in parameters.values()):
                free.append((key, clean_name(name), module))
    found: list[ModuleCopy] = []
    for key, name, module in free:
        if not any(name.startswith(f"{known.copy}.") for known in found):  # a part of a copy
            original = next((other for other, first in originals.get(key, ()) if _are_equal(first, module)), None)
            if original is not None:
                found.append(ModuleCopy(original, name, _sums(module)))
    return found


def standing_still(model: nn.Module, copies: Sequence[ModuleCopy]) -> dict[str, str]:
    """The copies whose weights are as they were when training started, though those of the original are not, each to that."""
    if not copies:
        return {}
    modules = {clean_name(name): module for name, module in model.named_modules()}
    known = [copy for copy in copies if {copy.original, copy.copy} <= modules.keys()]
    return {
        copy.copy: copy.original
        for copy in known
        if _sums(modules[copy.copy]) == copy.sums and not _are_equal(modules[copy.original], modules[copy.copy])
    }


def _are_equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return all(a.device == b.device and torch.equal(a.detach(), b.detach()) for a, b in pairs)


def _sums(module: nn.Module) -> Sequence[float]:
    values = (as_real(parameter.detach()) for parameter in module.parameters())
    return on_host([value.sum(dtype=row_dtype(value.device)) for value in values])
