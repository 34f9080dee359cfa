"""Parameters: selected by pattern or predicate, held where a model does not know of them, or without a gradient by design."""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice, takewhile
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lightning_hooks.hooks.attributes import contents, entries_of, stored
from lightning_hooks.hooks.graph import parameters_behind
from lightning_hooks.hooks.selection import check_entries, clean_name, cleaned, closest_names, fits, outwards
from lightning_hooks.hooks.tensors import has_values, is_computed

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("purelib", "platlib"))

ParameterSelector: TypeAlias = str | Sequence[str] | Callable[[str, nn.Parameter], bool]
"""A glob pattern on parameter names, several of these, or a predicate of (name, parameter)."""


def check_parameter_selector(parameters: object) -> None:
    """Raise if ``parameters`` is not a valid selector for :func:`select_parameters`.

    Raises:
        TypeError: If it is neither a pattern, a sequence of patterns, nor a predicate.
        ValueError: If it is empty.
    """
    if isinstance(parameters, type) or not callable(parameters):
        check_entries(
            parameters,
            "parameters must be a glob pattern on parameter names (str), several of these, or a predicate of (name, parameter)",
            lambda entry: isinstance(entry, str),
        )


def select_parameters(root: nn.Module, parameters: ParameterSelector) -> list[tuple[str, nn.Parameter]]:
    """Select parameters of ``root`` in the order of ``named_parameters()``, frozen ones included.

    Names are those of the uncompiled, unwrapped model. A tied parameter appears once, under its first name.

    Args:
        root: The model.
        parameters: The selector.

    Returns:
        (name, parameter) pairs.

    Raises:
        ValueError: If a pattern matches nothing (the message has the closest names), or a predicate selects nothing.
        TypeError: If the selector is of a wrong type.
    """
    check_parameter_selector(parameters)
    named = cleaned(root.named_parameters())
    if not isinstance(parameters, str | Sequence):
        chosen = [(name, parameter) for name, parameter in named if parameters(name, parameter)]
        if not chosen:
            raise ValueError(
                f"The predicate parameters={parameters!r} selects none of the {len(named)} parameters of {type(root).__name__}. "
                "It is called with (name, parameter) and returns True for those to select."
            )
        return chosen
    patterns = [parameters] if isinstance(parameters, str) else list(parameters)
    for pattern in patterns:
        if not any(fits(name, pattern) for name, _ in named):
            names = [name for name, _ in named]
            inside = [name for name in names if name.startswith(f"{pattern}.")]
            listed = ", ".join(map(repr, inside[:3] or closest_names(pattern, names))) or "none: the model has no parameters"
            hint = f"{pattern}.*" if inside else "encoder.*"
            raise ValueError(
                f"parameters={pattern!r} matches no parameter of {type(root).__name__}. Closest names: {listed}. Patterns are "
                f"globs on the names of named_parameters(), such as {hint!r}."
            )
    return [(name, parameter) for name, parameter in named if any(fits(name, pattern) for pattern in patterns)]


MOST = 256  # entries of a container that are inspected

_OF_TORCH = frozenset(vars(nn.Module()))


def unregistered_modules(root: nn.Module, counts: Callable[[nn.Module], bool] | None = None) -> dict[str, list[nn.Module]]:
    """Find modules in lists, tuples, sets and dictionaries, or in such containers in them, that are not in ``root.modules()``.

    A module counts only if it has a parameter that requires a gradient and is no parameter of ``root``: what is registered under
    another name, and what is frozen and hidden on purpose, does not.

    Args:
        root: The model.
        counts: Whether a module counts; None for as above.

    Returns:
        The name of the attribute, such as ``net.blocks``, to the outermost modules in it.
    """
    known = {id(module) for module in root.modules()}
    inside = (
        (name, dict.fromkeys(entry for entry in entries if isinstance(entry, nn.Module) and id(entry) not in known))
        for name, entries in _attributes(root)
    )
    hidden = (
        (name, [module for module in modules if (own_parameters(module, root) if counts is None else counts(module))])
        for name, modules in inside
    )
    return {name: modules for name, modules in hidden if modules}


def unregistered_tensors(root: nn.Module) -> dict[str, list[Tensor]]:
    """Find tensors that require a gradient and are no parameters of ``root``: plain attributes of modules, or in containers there.

    Args:
        root: The model.

    Returns:
        The name of the attribute, such as ``net.codes``, to the tensors in it; of one that was computed from parameters, as
        ``nn.Parameter(…).float()`` is, to these. What FSDP flattens does not count.
    """
    known = {id(parameter) for parameter in root.parameters()}
    hidden = (
        (name, [leaf for x in entries if isinstance(x, Tensor) for leaf in _leaves(x) if id(leaf) not in known])
        for name, entries in _attributes(root)
    )
    return {name: tensors for name, tensors in hidden if tensors}


def own_parameters(module: nn.Module, root: nn.Module) -> list[nn.Parameter]:
    """The parameters of a module that require a gradient and are none of ``root``."""
    known = {id(parameter) for parameter in root.parameters()}
    return [parameter for parameter in module.parameters() if parameter.requires_grad and id(parameter) not in known]


def _leaves(tensor: Tensor) -> list[Tensor]:
    """A tensor that requires a gradient and is no part of shards, or the parameters that it was computed from."""
    if not tensor.requires_grad or stored(tensor, "_is_flat_param"):
        return []
    return [tensor] if tensor.is_leaf else [parameter for parameter, _ in parameters_behind(tensor, {})]


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


BODY_SHARE = 0.5  # of the numbers of a model that require a gradient, the share of a body that is cut off, at least
SMALL = 0.01  # share of what trains up to which a part that nothing calls is small


def unused_parts(
    root: nn.Module, without: Set[str], called: Sequence[str] = (), recording: Set[str] = frozenset()
) -> dict[str, str]:
    """Find the parameters without a gradient in a part that a library's model does not use, or that is a copy of another part.

    A part is the largest module in which no parameter that requires a gradient has one. In a library's class it is a branch of the
    library's model that this task does not use, or that runs under ``no_grad``, but not if it holds a list of blocks that were
    called with gradients, or belongs to the body of the model: nobody runs an encoder for nothing. A library's class is of a
    package that states a ``__version__``, other than the package of the model's own class, unless that is installed where nobody
    edits it. In the user's own class the part was cut off, unless a module that trains has the same layers and similar weights:
    then it is a target or teacher network of that module. (Independent weights differ by 1.4 times their norm.) A part that holds
    little of what trains, and that nothing called, costs the others nothing.

    Args:
        root: The model.
        without: Names of parameters, as all names here without the prefixes of wrappers.
        called: Names of modules that were called, in the order of their first calls.
        recording: Those of them whose output required a gradient: they did not run under ``no_grad``.

    Returns:
        Name to the reason, as text, of the parameters found.
    """
    if not without:
        return {}
    modules = dict(cleaned(root.named_modules()))
    trainable = [(name, parameter) for name, parameter in cleaned(root.named_parameters()) if parameter.requires_grad]
    sizes = {name: parameter.numel() for name, parameter in trainable if has_values(parameter)}
    training = {around for name, _ in trainable if name not in without for around in outwards(name)[1:]}
    body = _body(modules, training, called, recording)
    parts = {parameter: _largest(parameter, training) for parameter in without}
    reasons: dict[str, str] = {}
    for part in set(parts.values()):
        runs = _runs_blocks(part, modules, [site for site in called if site in recording]) or any(
            f"{site}.".startswith(f"{part}.") for site in body
        )
        unused = "" if runs else _by_library(part, modules)
        reasons[part] = unused or _copy_of(part, modules, training) or _small_part(part, sizes, called)
    return {parameter: reasons[part] for parameter, part in parts.items() if reasons[part]}


def _small_part(part: str, sizes: Mapping[str, int], called: Sequence[str]) -> str:
    """Whether a part, or a parameter of its own, is small and not called, as the reason."""
    total = sum(sizes.values())
    inside = sum(size for name, size in sizes.items() if f"{name}.".startswith(f"{part}."))
    if not called or inside > SMALL * total or any(f"{site}.".startswith(f"{part}.") for site in called):
        return ""
    return f"not used, and holds {100 * inside / total:.2g}% of what trains"


def of_libraries(root: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Which modules or parameters a library's class holds, by their names without the prefixes of wrappers.

    Returns:
        Name to the reason why the part may be meant as it is, as text.
    """
    parts = list(names)
    modules = dict(cleaned(root.named_modules())) if parts else {}
    return {name: reason for name in parts if (reason := _by_library(name, modules))}


def _largest(parameter: str, training: Set[str]) -> str:
    """The largest module around a parameter in which nothing trains; the parameter itself if its module trains."""
    return [parameter, *takewhile(lambda outer: outer not in training, outwards(parameter)[1:-1])][-1]


def _by_library(part: str, modules: Mapping[str, nn.Module]) -> str:
    """The reason if a library's class holds the part. PyTorch's classes are skipped: they are only containers."""
    own = type(modules[""]).__module__.partition(".")[0]
    for holder in outwards(part)[1:]:
        kind = type(modules[holder])
        package = kind.__module__.partition(".")[0]
        if package != "torch":
            library = (package != own or _is_installed(package)) and _states_a_version(package)
            return f"a part of {kind.__name__} (from {package}) that this task does not use" if library else ""
    return ""


def _is_installed(package: str) -> bool:
    """Whether a package lies among those that an installer has copied, unlike a project or an editable checkout."""
    file = getattr(sys.modules.get(package), "__file__", None)
    return isinstance(file, str) and file.startswith(_INSTALLED)


def _states_a_version(package: str) -> bool:
    try:
        return isinstance(getattr(sys.modules.get(package), "__version__", None), str)
    except Exception:  # noqa: BLE001  a package may look its attributes up when they are asked for, and that may fail
        return False


def _runs_blocks(part: str, modules: Mapping[str, nn.Module], called: Sequence[str]) -> bool:
    """Whether a part holds a list of blocks, any of which was called."""
    within = modules[part].named_modules(prefix=part) if part in modules else ()
    lists = [clean_name(name) for name, module in within if isinstance(module, nn.ModuleList)]  # the part may hold wrappers
    return any(site.startswith(f"{blocks}.") for blocks in lists for site in called)


def _body(modules: Mapping[str, nn.Module], training: Set[str], called: Sequence[str], recording: Set[str]) -> Sequence[str]:
    """The modules that were called before any that trains, if they hold most of the model: what comes after has its input of them.

    A branch that a task does not use is called after others, if at all: a pooler follows its encoder. Modules under ``no_grad``
    are a body whose features are meant to stay as they are, and so are those whose output is no function of a parameter.
    """
    first = [site for site in takewhile(lambda site: site not in training, called) if site in recording and site in modules]
    return first if sum(_elements(modules[site]) for site in first) >= BODY_SHARE * _elements(modules[""]) else ()


def _elements(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad and not nn.parameter.is_lazy(p))


def _copy_of(part: str, modules: Mapping[str, nn.Module], training: Set[str]) -> str:
    """The reason if the part is a copy of a module that trains: same shapes, and names that differ by more than a number."""
    if part not in modules:
        return ""
    shapes = _shapes(modules[part])
    for name, module in modules.items():
        same = type(module) is type(modules[part]) and _plain(name) != _plain(part) and _shapes(module) == shapes
        if name and same and name in training and _follows(modules[part], module):
            return f"built like {name}, which trains: a target or teacher network that follows it"
    return ""


def _follows(one: nn.Module, other: nn.Module) -> bool:
    """Whether the first weights of two modules of the same shapes are similar. Waits for the device."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    for weight, like in ((p.detach(), q.detach()) for p, q in pairs if p.dim() > 1 and has_values(p) and has_values(q)):
        return bool(torch.linalg.vector_norm(weight - like) < 0.9 * torch.linalg.vector_norm(like))
    return False


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in module.named_parameters() if is_computed(parameter)}


def _plain(name: str) -> str:
    return re.sub(r"\d+", "#", name)
