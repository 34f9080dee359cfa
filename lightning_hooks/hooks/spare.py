"""Parts of a model that have no gradient by design."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path

import torch
from torch import nn

from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.values import has_values

MOST = 0.5
"""Of the numbers of a model that require a gradient, the share of a body that is cut off, at least."""


def spare_parts(
    root: nn.Module, without: Set[str], called: Sequence[str] = (), recording: Set[str] = frozenset()
) -> dict[str, str]:
    """Find the parameters without a gradient in a part that a library's model does not use, or that is a copy of another part.

    A part is the largest module in which no parameter that requires a gradient has one. In a library's class it is a branch of the
    library's model that this task does not use, or that runs under ``no_grad``, but not if it holds a list of blocks that were
    called with gradients, or belongs to the body of the model: nobody runs an encoder for nothing. In the user's own class it was
    cut off, unless a module that trains has the same layers and similar weights: then it is a target or teacher network of that
    module. (Independent weights differ by 1.4 times their norm.)

    Args:
        root: The model.
        without: Names of parameters, as ``root.named_parameters()`` has them.
        called: Names of modules that were called, without the prefixes of wrappers, in the order of their first calls.
        recording: Those of them whose output required a gradient: they did not run under ``no_grad``.

    Returns:
        Name to the reason, as text, of the parameters found.
    """
    if not without:
        return {}
    modules = dict(root.named_modules())
    trained = {name for name, parameter in root.named_parameters() if parameter.requires_grad and name not in without}
    body = _body(root, trained, called, recording)
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for parameter in without:
        part = _largest(parameter, trained)
        if part not in reasons:
            runs = _runs_blocks(part, modules, [site for site in called if site in recording])
            runs = runs or any(f"{site}.".startswith(f"{clean_name(part)}.") for site in body)
            unused = "" if runs else _by_library(part, modules)
            reasons[part] = unused or _copy_of(part, modules, trained)
        if reasons[part]:
            found[parameter] = reasons[part]
    return found


def of_libraries(root: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Which modules or parameters a class of an installed library holds, by their names without the prefixes of wrappers.

    Returns:
        Name to the reason why the part may be meant as it is, as text.
    """
    modules = {clean_name(name): module for name, module in root.named_modules()}
    return {name: reason for name in names if (reason := _by_library(name, modules))}


def _largest(parameter: str, trained: Set[str]) -> str:
    """The largest module around a parameter in which nothing trains; the parameter itself if its module trains."""
    part, outer = parameter, parameter.rpartition(".")[0]
    while outer and not any(name.startswith(f"{outer}.") for name in trained):
        part, outer = outer, outer.rpartition(".")[0]
    return part


def _by_library(part: str, modules: Mapping[str, nn.Module]) -> str:
    """The reason if an installed library's class holds the part. PyTorch's classes are skipped: they are only containers."""
    holder = part
    while holder:
        holder = holder.rpartition(".")[0]
        kind = type(modules[holder])
        if not kind.__module__.startswith("torch."):
            library = kind.__module__.partition(".")[0]
            inner = re.split("[./]", part.removeprefix(f"{holder}." if holder else ""))[0]  # of a call: net.body/softmax
            own = _installed(kind) and any(_names(base, inner) for base in kind.__mro__)
            return f"a part of {kind.__name__} (from {library}) that this task does not use" if own else ""
    return ""


def _names(base: type[object], attribute: str) -> bool:
    """Whether the code of a class names an attribute, or may: one that it does not was added to the model by the user."""
    if base is object or base.__module__.startswith("torch."):
        return issubclass(base, nn.Module) and base is not nn.Module  # a layer with the weights of PyTorch's own, or a container
    source = _classes(getattr(sys.modules.get(base.__module__), "__file__", None)).get(base.__name__, "")
    stem = attribute.rstrip("0123456789")
    of_a_number = rf"""|["']{re.escape(stem)}[{{%"']""" if stem != attribute else ""  # layer1, by f"layer{number}"
    named = rf"""self\.{re.escape(attribute)}\b|["']{re.escape(attribute)}["']{of_a_number}"""
    return not source or re.search(named, source) is not None


@cache
def _classes(file: str | None) -> dict[str, str]:
    """The code of each class at the top of a file; nothing where the file is not there to be read."""
    try:
        source = Path(file).read_text(encoding="utf-8") if file else ""
        found = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    except (OSError, ValueError, SyntaxError):
        return {}
    lines = source.splitlines()
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in found}


def _runs_blocks(part: str, modules: Mapping[str, nn.Module], called: Sequence[str]) -> bool:
    """Whether a part holds a list of blocks, any of which was called."""
    within = modules[part].named_modules(prefix=part) if part in modules else ()
    lists = [clean_name(name) for name, module in within if isinstance(module, nn.ModuleList)]
    return any(site.startswith(f"{blocks}.") for blocks in lists for site in called)


def _body(root: nn.Module, trained: Set[str], called: Sequence[str], recording: Set[str]) -> Sequence[str]:
    """The modules that were called before any that trains, if they hold most of the model: what comes after has its input of them.

    A branch that a task does not use is called after others, if at all: a pooler follows its encoder. Modules under ``no_grad``
    are a body whose features are meant to stay as they are, and so are those whose output is no function of a parameter.
    """
    modules = {clean_name(name): module for name, module in root.named_modules()}
    training = {clean_name(name).rpartition(".")[0] for name in trained}
    first: list[str] = []
    elements = 0
    for site in called:
        if any(f"{holder}.".startswith(f"{site}.") for holder in training):
            break
        if site in recording and site in modules:
            first.append(site)
            elements += sum(p.numel() for p in modules[site].parameters() if p.requires_grad and not nn.parameter.is_lazy(p))
    all_elements = sum(p.numel() for p in root.parameters() if p.requires_grad and not nn.parameter.is_lazy(p))
    return first if elements >= MOST * all_elements else ()


def _installed(kind: type[object]) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def _copy_of(part: str, modules: Mapping[str, nn.Module], trained: Set[str]) -> str:
    """The reason if the part is a copy of a module that trains: same shapes, and names that differ by more than a number."""
    if part not in modules:
        return ""
    shapes = _shapes(modules[part])
    for name, module in modules.items():
        same = type(module) is type(modules[part]) and _plain(name) != _plain(part) and _shapes(module) == shapes
        if name and same and any(known.startswith(f"{name}.") for known in trained) and _follows(modules[part], module):
            return f"built like {name}, which trains: a target or teacher network that follows it"
    return ""


def _follows(one: nn.Module, other: nn.Module, limit: float = 0.9) -> bool:
    """Whether the first weights of two modules of the same shapes are similar. Waits for the device."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    for weight, like in ((p.detach(), q.detach()) for p, q in pairs if p.dim() > 1 and has_values(p) and has_values(q)):
        return bool(torch.linalg.vector_norm(weight - like) < limit * torch.linalg.vector_norm(like))
    return False


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters() if not nn.parameter.is_lazy(parameter)}


def _plain(name: str) -> str:
    return re.sub(r"\d+", "#", name)
