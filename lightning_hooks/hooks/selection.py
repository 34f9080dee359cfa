"""Selection of modules by pattern, type or predicate."""

from __future__ import annotations

import difflib
import fnmatch
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

import torch
from torch import nn

from lightning_hooks.hooks.attributes import stored

T = TypeVar("T")

ModuleSelector: TypeAlias = str | type[nn.Module] | Sequence["str | type[nn.Module]"] | Callable[[str, nn.Module], bool]
"""A glob pattern on module names, a module type (or its full name, ``torch.nn.ReLU``), several of these, or a predicate of
(name, module)."""

# Wrappers that rename the modules inside them; the name of a site does not depend on them.
_WRAPPER_PREFIXES = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")

# Leaves that return their input or parts of it: their statistics add nothing.
_PASS_THROUGH: tuple[type[nn.Module], ...] = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *(nn.Identity, nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
)

_CONTAINERS: tuple[type[nn.Module], ...] = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict, nn.Sequential)

# Modules that use their children's parameters without calling the children: one site, without silent sites inside.
OPAQUE: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)


def check_selector(modules: object) -> None:
    """Raise if ``modules`` is not a valid selector for :func:`select_modules`.

    Raises:
        TypeError: If it is neither None, a pattern, a module type, a predicate, nor a sequence of patterns and types.
        ValueError: If it is an empty sequence or pattern.
    """
    expected = (
        "modules must be a glob pattern on module names (str), a module type, a sequence of these, "
        "a predicate of (name, module), or None for every leaf that computes something"
    )
    if isinstance(modules, nn.Module):
        raise TypeError(f"{expected}; got the module {type(modules).__name__} itself: give its name.")
    if modules is not None and not callable(modules):
        check_entries(modules, expected, lambda entry: isinstance(entry, str) or _is_module_type(entry))


def check_entries(selector: object, expected: str, is_entry: Callable[[object], bool]) -> None:
    """Raise if ``selector`` is neither an entry, such as a pattern, nor a sequence of these; ``expected`` says what it is to be.

    Raises:
        TypeError: If it is something else.
        ValueError: If it is an empty sequence or pattern.
    """
    if not isinstance(selector, Sequence):
        raise TypeError(f"{expected}; got {selector!r}.")
    entries = [selector] if isinstance(selector, str) else list(selector)
    if not entries or "" in entries:
        raise ValueError(f"{expected}; got {selector!r}, which names nothing.")
    wrong = [entry for entry in entries if not is_entry(entry)]
    if wrong:
        raise TypeError(f"{expected}; got {wrong[0]!r} in {selector!r}.")


def describe_selector(modules: ModuleSelector | None) -> str:
    """Return a text for the selector that is the same in every process."""
    if isinstance(modules, str) or modules is None:
        return repr(modules)
    if isinstance(modules, Sequence):
        return ", ".join(describe_selector(entry) for entry in modules)
    return getattr(modules, "__qualname__", type(modules).__qualname__)


def select_modules(root: nn.Module, modules: ModuleSelector | None = None, *, calls: bool = False) -> list[tuple[str, nn.Module]]:
    """Select modules of ``root`` in the order of ``named_modules()``; the root itself is never selected.

    Names are those of the uncompiled, unwrapped model: ``torch.compile``, checkpoint and FSDP prefixes are dropped.

    Args:
        root: The model.
        modules: The selector; None takes every leaf that computes something: no pass-through modules (dropout,
            identity, flatten), no losses, no torchmetrics metrics. Patterns with a slash are on names of functional calls.
        calls: Whether functional calls may be all that is selected.

    Returns:
        (name, module) pairs; a module with two names appears once.

    Raises:
        ValueError: If a pattern or type matches nothing (the message has the closest names), or nothing is selected.
        TypeError: If the selector is of a wrong type.
    """
    check_selector(modules)
    named = [(name, module) for name, module in named_sites(root) if name]
    if not named:
        raise ValueError(
            f"{type(root).__name__} has no submodules to observe, and the model itself is never selected. Pass the model that it "
            "belongs to, or wrap it: torch.nn.Sequential(model)."
        )
    if modules is None:
        closed = [module for _, module in named if _is_opaque(module) or is_metric(module)]
        inside = {id(inner) for module in closed for inner in list(module.modules())[1:]}
        chosen = [(name, module) for name, module in named if _computes(module) and id(module) not in inside]
        if not chosen:
            raise ValueError(
                f"{type(root).__name__} has no leaf module that computes something, so there is nothing to observe. "
                "Name the modules to observe with modules=."
            )
        return chosen
    if not isinstance(modules, str | Sequence) and not _is_module_type(modules):
        predicate: Callable[[str, nn.Module], bool] = modules  # type: ignore[assignment]  # narrowed by check_selector
        chosen = [(name, module) for name, module in named if predicate(name, module)]
        if not chosen:
            raise ValueError(
                f"The predicate modules={modules!r} selects none of the {len(named)} modules of {type(root).__name__}. "
                "It is called with (name, module) and returns True for the modules to observe."
            )
        return chosen
    entries = [entry for entry in _entries(modules) if not (isinstance(entry, str) and "/" in entry)]  # else of calls
    if not entries and not calls:
        raise ValueError(
            f"modules={modules!r} selects functional calls only, and modules are observed here. Name modules as well; "
            "functional calls have feature statistics: FeatureStatsMonitor."
        )
    for entry in entries:
        if not any(_matches(entry, name, module) for name, module in named):
            raise ValueError(_no_match(entry, root, named))
    return [(name, module) for name, module in named if any(_matches(entry, name, module) for entry in entries)]


def selects_call(modules: ModuleSelector | None, name: str, caller: str, module: nn.Module) -> bool:
    """Whether a selector takes a functional call: by its own name or by its module.

    Args:
        modules: The selector; None takes every call.
        name: Such as ``blocks.3.attn/sdpa``.
        caller: The name of the module that makes it.
        module: That module.
    """
    if modules is None:
        return True
    if not isinstance(modules, str | Sequence) and not _is_module_type(modules):
        predicate: Callable[[str, nn.Module], bool] = modules  # type: ignore[assignment]  # narrowed by check_selector
        return bool(predicate(caller, module))
    return any(
        _matches(entry, name, module) or (isinstance(entry, str) and _matches(entry, caller, module)) for entry in _entries(modules)
    )


def _entries(modules: ModuleSelector) -> list[str | type[nn.Module]]:
    return [modules] if isinstance(modules, str | type) else list(modules)  # type: ignore[arg-type]


def named_sites(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield (clean name, module) of ``root`` and its submodules, each module once.

    Wrappers are left out, and so are ``torch.jit`` modules, which take no hooks.
    """
    for name, module in root.named_modules():
        # Of a wrapper the wrapped module itself comes next, under the same clean name.
        if not (name and isinstance(module, torch.jit.ScriptModule)) and module._modules.keys().isdisjoint(_WRAPPER_PREFIXES):
            yield clean_name(name), module


def clean_name(name: str) -> str:
    """Return a module or parameter name without the parts that wrappers add; the same string for all who keep it."""
    if any(map(name.__contains__, _WRAPPER_PREFIXES)):
        name = ".".join(part for part in name.split(".") if part not in _WRAPPER_PREFIXES)
    return sys.intern(name)


def cleaned(named: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """Named modules or parameters by their clean names, without a call for each where there is no wrapper."""
    found = [*named]
    wrapped = any(map("\n".join([name for name, _ in found]).__contains__, _WRAPPER_PREFIXES))
    return [(clean_name(name) if wrapped else sys.intern(name), value) for name, value in found]


def outwards(name: str) -> list[str]:
    """The names of a module and of all modules around it, up to the root's (an empty one).

    Example:
        >>> outwards("net.blocks.0")
        ['net.blocks.0', 'net.blocks', 'net', '']
    """
    parts = name.split(".") if name else []
    return [".".join(parts[:end]) for end in range(len(parts), -1, -1)]


def compiled_regions(root: nn.Module) -> list[str]:
    """Return the clean names of the modules of ``root`` that run under ``torch.compile``; "" for the root itself."""
    return [clean_name(name) for name, _ in _compiled(root)]


def compiled_around(name: str, regions: Iterable[str]) -> str | None:
    """Return the region of :func:`compiled_regions` that holds the module ``name``, or None."""
    return next((region for region in regions if not region or f"{name}.".startswith(f"{region}.")), None)


def inside_compiled(root: nn.Module) -> list[nn.Module]:
    """Return the modules of ``root`` that run under ``torch.compile``, with all their submodules."""
    return [inner for _, module in _compiled(root) for inner in module.modules()]


def _compiled(root: nn.Module) -> list[tuple[str, nn.Module]]:
    # There is no public way to find this out: module.compile() leaves _compiled_call_impl, torch.compile(module) wraps, and
    # Lightning, given a compiled LightningModule, keeps how it was compiled in _compiler_ctx and unwraps it.
    if stored(root, "_compiler_ctx") is not None:
        return [("", root)]
    return [
        (name, module)
        for name, module in root.named_modules()
        if "_orig_mod" in module._modules or stored(module, "_compiled_call_impl") is not None
    ]


def _computes(module: nn.Module) -> bool:
    if isinstance(module, _PASS_THROUGH + _CONTAINERS + (nn.modules.loss._Loss,)) or is_metric(module):
        return False
    parts = [child for child in module.children() if not isinstance(child, nn.ParameterList | nn.ParameterDict)]
    return _is_opaque(module) or not parts or _holds_all_its_weights(module)


def _holds_all_its_weights(module: nn.Module) -> bool:
    """Whether a module has parameters of its own and its submodules none: experts in one tensor next to their activation."""
    own = list(module.parameters(recurse=False))
    return bool(own) and len(own) == len(list(module.parameters()))


def repeated_blocks(root: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the blocks that a model is a stack of: modules of one class in one list, two at least, each with parts of its own.

    A list is a ``ModuleList``, a ``Sequential`` or a ``ModuleDict``, and no block itself. Blocks inside such blocks (experts,
    heads) are none.

    Returns:
        (name, module) pairs in the order of ``named_modules()``.
    """
    lists = {clean_name(name) for name, module in root.named_modules() if isinstance(module, _CONTAINERS)}
    siblings: dict[tuple[str, type[nn.Module]], list[tuple[str, nn.Module]]] = {}
    for name, module in named_sites(root):
        has_parts = can_be_called(module) and next(module.children(), None) is not None
        around = name.rpartition(".")[0]
        if name and has_parts and around in lists and not isinstance(module, _CONTAINERS) and not _is_opaque(module):
            siblings.setdefault((around, type(module)), []).append((name, module))
    repeated = [group for group in siblings.values() if len(group) > 1]
    names = {name for group in repeated for name, _ in group}
    return [(name, block) for group in repeated for name, block in group if names.isdisjoint(outwards(name)[1:])]


def can_be_called(module: nn.Module) -> bool:
    """Whether a module has its own ``forward``; a ``ModuleList`` does not."""
    return type(module).forward is not nn.Module.forward


def is_metric(module: nn.Module) -> bool:
    """Whether a module is a torchmetrics metric."""
    # By name: this folder is plain torch and does not import torchmetrics.
    return any(kind.__module__.split(".")[0] == "torchmetrics" for kind in type(module).__mro__)


def _is_opaque(module: nn.Module) -> bool:
    # A parametrised layer (weight norm, spectral norm) keeps its parametrisations as a child; it is still one layer.
    return isinstance(module, OPAQUE) or set(dict(module.named_children())) == {"parametrizations"}


def _is_module_type(entry: object) -> bool:
    return isinstance(entry, type) and issubclass(entry, nn.Module)


def fits(name: str, pattern: str) -> bool:
    """Whether a name fits a glob pattern; a name may contain the brackets of one."""
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def closest_names(pattern: str, names: Sequence[str]) -> Sequence[str]:
    """The names that are most like a glob pattern, up to three; the first ones if none is."""
    return difflib.get_close_matches(pattern.replace("*", "").strip("."), names, n=3, cutoff=0.3) or names[:3]


def _matches(entry: str | type[nn.Module], name: str, module: nn.Module) -> bool:
    if isinstance(entry, str):
        return fits(name, entry) or ("." in entry and entry in _type_names(type(module)))
    return isinstance(module, entry)


def _type_names(kind: type[nn.Module]) -> set[str]:
    """The full names of a type and its base classes, as configuration files write them."""
    bases = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return {f"{base.__module__}.{base.__qualname__}" for base in bases} | {
        f"torch.nn.{base.__qualname__}" for base in bases if base.__module__.startswith("torch.nn.modules.")
    }


def _no_match(entry: str | type[nn.Module], root: nn.Module, named: list[tuple[str, nn.Module]]) -> str:
    if not isinstance(entry, str):
        kinds = ", ".join(sorted({type(module).__name__ for _, module in named}))
        return f"modules={entry.__name__} matches no module of {type(root).__name__}; its modules are of type {kinds}."
    jitted = [name for name, module in root.named_modules() if isinstance(module, torch.jit.ScriptModule) and fits(name, entry)]
    if jitted:
        return f"modules={entry!r} matches {jitted[0]!r}, a torch.jit module, which takes no hooks. Choose a module around it."
    listed = ", ".join(map(repr, closest_names(entry, [name for name, _ in named])))
    return (
        f"modules={entry!r} matches no module of {type(root).__name__}. Closest names: {listed}. "
        "Patterns are globs on the names of named_modules(), such as 'encoder.*' or '*.conv?'."
    )
