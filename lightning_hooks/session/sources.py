"""Where modules come from: the class of each, the line that defines it, and the line that creates it.

Files are read and parsed; nothing of the user's is called. What the source does not show for certain is None.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import dedent
from types import FunctionType
from typing import Any

from torch import nn

from lightning_hooks.hooks.attributes import contents
from lightning_hooks.hooks.selection import clean_name, named_sites
from lightning_hooks.run_report.recorded import Source

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


class Sources:
    """The sources of the modules of one model, of which only the classes are kept. Each is computed once."""

    def __init__(self, model: nn.Module) -> None:
        self._types: dict[str, Any] = {name: type(module) for name, module in named_sites(model)}
        self._types |= {name: type(model) for name in contents(model).get("_parameters", ())}  # the root's own parameters
        self._parameters = {clean_name(name) for name, _ in model.named_parameters()}
        self._known: dict[str, Source | None] = {}

    def of(self, site: str) -> Source | None:
        """The source of the module that a site belongs to; None for a site that is of no module."""
        name = site.partition("/")[0]
        if name not in self._types and name in self._parameters:
            name = name.rpartition(".")[0]
        if name not in self._types:
            return None
        if name not in self._known:
            kind = self._types[name]
            definition = _definition(kind)
            defined = None if definition is None else _line(kind, definition)
            self._known[name] = Source(f"{kind.__module__}.{kind.__qualname__}", defined, self._creation(name))
        return self._known[name]

    def _creation(self, name: str) -> str | None:
        """The line that creates a module, or the container that it is in: in the class of the module around these."""
        outer, _, attribute = name.rpartition(".")
        keys = []
        while outer and self._types.get(outer) in _CONTAINERS:
            keys.append(attribute)
            outer, _, attribute = outer.rpartition(".")
        for kind in self._types.get(outer, object).__mro__:
            definition = None if kind in (*_CONTAINERS, nn.Module, object) else _definition(kind)
            assigned = [] if definition is None else list(_assigned(definition, attribute))
            if len(assigned) > 1:
                return None
            for found in assigned:
                for key in reversed(keys):
                    found = _part(found, key)
                made = _called(found)
                expected = (self._types[name], *_CONTAINERS) if keys else (self._types[name],)
                mismatch = made[:1].isupper() and made not in {one.__name__ for one in expected}  # replaced, or made elsewhere
                return _line(kind, found) if made and not mismatch else None
        return None


@cache
def _definition(kind: type[Any]) -> ast.ClassDef | None:
    """The definition of a class in its file; None where there is no such file, or the file has changed since it was imported."""
    try:
        lines, start = inspect.getsourcelines(kind)
        definition = ast.parse(dedent("".join(lines))).body[0]
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    if not isinstance(definition, ast.ClassDef):
        return None
    ast.increment_lineno(definition, start - 1)
    functions = [node for node in definition.body if isinstance(node, ast.FunctionDef)]
    found = {node.name: min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) for node in functions}
    own = (value for name, value in vars(kind).items() if name in found and isinstance(value, FunctionType))
    moved = any(value.__code__.co_firstlineno != found[value.__name__] for value in own if value.__name__ in found)
    return None if moved else definition


def _assigned(definition: ast.ClassDef, attribute: str) -> Iterator[ast.expr]:
    """What a class assigns to an attribute of itself, or registers under its name."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and len(node.args) == 2:
            registers = node.func.attr in ("add_module", "register_module") and _is_self(node.func.value)
            if registers and isinstance(node.args[0], ast.Constant) and node.args[0].value == attribute:
                yield node.args[1]
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            yield from (v for t, v in pairs if isinstance(t, ast.Attribute) and t.attr == attribute and _is_self(t.value))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _part(made: ast.expr, key: str) -> ast.expr:
    """What a container that is created in the source holds at a place; the container itself where the source does not show it."""
    entries = made.args if isinstance(made, ast.Call) else []
    if len(entries) == 1 and isinstance(entries[0], ast.List | ast.Tuple):
        entries = entries[0].elts
    shown = not any(isinstance(entry, ast.Starred) for entry in entries)
    found = dict(enumerate(entries)).get(int(key)) if key.isdecimal() and shown else None
    return found if isinstance(found, ast.Call) else made


def _called(node: ast.expr) -> str:
    """The last name of what a call calls; empty for another expression."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _line(kind: type[Any], node: ast.ClassDef | ast.expr) -> str:
    """``file:line``: the file relative to the working directory, or to the folder that holds the package of a class."""
    file = Path(str(sys.modules[kind.__module__].__file__)).absolute()
    cwd = Path.cwd()
    if file.is_relative_to(cwd) and {"site-packages", "dist-packages"}.isdisjoint(file.relative_to(cwd).parts):
        path = file.relative_to(cwd)
    else:
        depth = kind.__module__.count(".") + (file.name == "__init__.py")
        path = file.relative_to(file.parents[depth]) if depth < len(file.parents) else Path(file.name)
    return f"{path.as_posix()}:{node.lineno}"
