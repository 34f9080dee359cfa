"""Modules whose code calls functions that are under ``torch.compile``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

_STEPS = ("forward", "training_step", "validation_step")
_DEEPEST = 3
"""Calls from function to function that are followed."""
_LIBRARIES = ("torch", "lightning", "pytorch_lightning")
"""Packages whose functions are not searched."""


def modules_with_compiled_calls(modules: Mapping[str, nn.Module]) -> list[str]:
    """Name the modules that call functions which ``torch.compile`` returned, as far as the names in their code show.

    Names in code are looked up among global variables, closures and the module's own attributes, without running any code. A
    compiled module is not such a function: see :func:`~.selection.compiled_regions`.

    Args:
        modules: By name.
    """
    classes: dict[type[nn.Module], bool] = {}
    found = []
    for name, module in modules.items():
        own = [step for step in _STEPS if step in module.__dict__]
        if own or type(module) not in classes:
            known = _calls_compiled(module)
            if not own:
                classes[type(module)] = known
        else:
            known = classes[type(module)]
        found += [name] if known else []
    return found


def _calls_compiled(module: nn.Module) -> bool:
    places = [module.__dict__, *(kind.__dict__ for kind in type(module).__mro__ if not _of_library(kind.__module__))]
    under_way = [_function(place.get(step)) for step in _STEPS for place in places]
    known: set[int] = set()
    for _ in range(_DEEPEST):
        named = [found for function in under_way for found in _named_in(function, places)]
        if any(_is_compiled(found) for found in (*under_way, *named)):
            return True
        known.update(map(id, under_way))
        functions = {id(found): found for found in map(_function, named)}
        under_way = [found for key, found in functions.items() if key not in known]
    return False


def _is_compiled(found: object) -> bool:
    attributes = found.__dict__ if isinstance(found, FunctionType) else {}
    return "_torchdynamo_orig_callable" in attributes and "_torchdynamo_disable" not in attributes


def _function(found: object) -> FunctionType | None:
    """The Python function behind a function or method; None for anything else, and for those of libraries."""
    function = found.__func__ if isinstance(found, MethodType | staticmethod | classmethod) else found
    return function if isinstance(function, FunctionType) and not _of_library(function.__module__) else None


def _of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def _named_in(function: FunctionType | None, places: list[Any]) -> Iterator[Any]:
    """What the names in a function's code stand for."""
    if function is None:
        return
    names = set(_names(function.__code__))
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing yet
            continue
    for place in (function.__globals__, *places):
        for name in names.intersection(place):
            yield place[name]


def _names(code: CodeType) -> Iterator[str]:
    """The names that code uses, and the functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
