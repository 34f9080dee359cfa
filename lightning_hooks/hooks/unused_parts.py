"""Parts of a model that have no gradient by design."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence, Set

import torch
from torch import nn

from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.values import has_values

MOST = 0.5
"""Of the numbers of a model that require a gradient, the share of a body that is cut off, at least."""


def unused_parts(
    root: nn.Module, without: Set[str], called: Sequence[str] = (), recording: Set[str] = frozenset()
) -> dict[str, str]:
    """Find the parameters without a gradient in a part that a library's model does not use, or that is a copy of another part.

    A part is the largest module in which no parameter that requires a gradient has one. In a library's class it is a branch of the
    library's model that this task does not use, or that runs under ``no_grad``, but not if it holds a list of blocks that were
    called with gradients, or belongs to the body of the model: nobody runs an encoder for nothing. A library's class is of a
    package that states a ``__version__``, other than the package of the model's own class. In the user's own class the part was cut
    off, unless a module that trains has the same layers and similar weights: then it is a target or teacher network of that
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
    """Which modules or parameters a library's class holds, by their names without the prefixes of wrappers.

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
    """The reason if a library's class holds the part. PyTorch's classes are skipped: they are only containers."""
    own = type(modules[""]).__module__.partition(".")[0]
    holder = part
    while holder:
        holder = holder.rpartition(".")[0]
        kind = type(modules[holder])
        package = kind.__module__.partition(".")[0]
        if package != "torch":
            library = package != own and _states_a_version(package)
            return f"a part of {kind.__name__} (from {package}) that this task does not use" if library else ""
    return ""


def _states_a_version(package: str) -> bool:
    try:
        return isinstance(getattr(sys.modules.get(package), "__version__", None), str)
    except Exception:  # noqa: BLE001  a package may look its attributes up when they are asked for, and that may fail
        return False


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
