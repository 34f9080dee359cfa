"""Where modules come from: the class of each, the line that defines it, and the line that creates it.

Files are read and parsed; nothing of the user's is called. What the source does not show for certain is None.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from torch import nn

from lightning_hooks.hooks.attributes import contents
from lightning_hooks.hooks.selection import clean_name, named_sites
from lightning_hooks.run_report.recorded import Source

MOST_BYTES = 2_000_000
"""Of a file that is parsed."""
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_Class = ast.ClassDef
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """The sources of the modules of one model, of which only the classes are kept. Each is computed once."""

    def __init__(self, model: nn.Module) -> None:
        self._types = {name: type(module) for name, module in named_sites(model)}
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
            definition = definition_of(kind)
            defined = None if definition is None else _line(kind, definition)
            self._known[name] = Source(f"{kind.__module__}.{kind.__qualname__}", defined, self._creation(name))
        return self._known[name]

    def _creation(self, name: str) -> str | None:
        """The line that creates a module: in the class of the module around it, or of that around the containers it is in."""
        outer, _, key = name.rpartition(".")
        keys = [key]
        while outer and self._types.get(outer) in _CONTAINERS:
            outer, _, key = outer.rpartition(".")
            keys.append(key)
        for kind in self._types.get(outer, object).__mro__:
            definition = None if kind in (*_CONTAINERS, nn.Module, object) else definition_of(kind)
            assigned = [] if definition is None else list(_assigned(definition, keys[-1]))
            if definition is None or not assigned:
                continue
            found: ast.expr | None = assigned[0] if len(assigned) == 1 else None
            for key in reversed(keys[:-1]):
                found = None if found is None else _part(found, key)
            made = _called(found)
            mismatch = made[:1].isupper() and made != self._types[name].__name__  # it was replaced since, or made elsewhere
            return _line(kind, found) if found is not None and made and not mismatch else None
        return None


def definition_of(kind: type[Any]) -> _Class | None:
    """The definition of a class in its file; None where there is no such file, or the file has changed since it was imported."""
    file = _file_of(kind)
    lines = {
        (value.__name__, value.__code__.co_firstlineno)
        for value in vars(kind).values()
        if isinstance(value, FunctionType) and file and Path(value.__code__.co_filename).name == Path(file).name
    }
    for definition in _definitions(file).get(kind.__qualname__, ()) if file else ():
        found = {(node.name, _first_line(node)) for node in definition.body if isinstance(node, _Function)}
        if {(name, line) for name, line in lines if name in {known for known, _ in found}} <= found:
            return definition
    return None


def _file_of(kind: type[Any]) -> str | None:
    file = contents(sys.modules.get(kind.__module__)).get("__file__")
    return file if isinstance(file, str) and file.endswith(".py") else None


@cache
def _definitions(file: str) -> dict[str, list[_Class]]:
    """The classes of a file by their qualified names; none where it cannot be read."""
    found: dict[str, list[_Class]] = {}
    try:
        if Path(file).stat().st_size <= MOST_BYTES:
            _collect(ast.parse(Path(file).read_bytes()).body, "", found)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    return found


def _collect(body: Iterable[ast.AST], prefix: str, found: dict[str, list[_Class]]) -> None:
    for node in body:
        if isinstance(node, _Class):
            found.setdefault(f"{prefix}{node.name}", []).append(node)
            _collect(node.body, f"{prefix}{node.name}.", found)
        elif isinstance(node, _Function):
            _collect(node.body, f"{prefix}{node.name}.<locals>.", found)
        else:  # if, try, with
            _collect(ast.iter_child_nodes(node), prefix, found)


def _first_line(function: _Function) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])


def _assigned(definition: _Class, attribute: str) -> Iterator[ast.expr]:
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


def _part(made: ast.expr, key: str) -> ast.expr | None:
    """What a container that is created in the source holds under a key; None where the source does not show it."""
    call = _called(made)
    if call not in ("Sequential", "ModuleList", "ModuleDict", "OrderedDict", "dict") or not isinstance(made, ast.Call):
        return None
    named = [keyword.value for keyword in made.keywords if keyword.arg == key]
    if named:
        return named[0]
    entries = made.args
    if len(entries) == 1:
        only = entries[0]
        if isinstance(only, ast.Dict):
            pairs = zip(only.keys, only.values, strict=True)
            return next((value for known, value in pairs if isinstance(known, ast.Constant) and known.value == key), None)
        if isinstance(only, ast.ListComp | ast.GeneratorExp):
            return only.elt if key.isdigit() and call == "ModuleList" else None
        if _called(only) in ("OrderedDict", "dict"):
            return _part(only, key)
        if isinstance(only, ast.List | ast.Tuple):
            entries = only.elts
    for entry in entries if not key.isdigit() else ():
        if isinstance(entry, ast.Tuple) and len(entry.elts) == 2:
            known, value = entry.elts
            if isinstance(known, ast.Constant) and known.value == key:
                return value
    place = int(key) if key.isdecimal() and len(key) < 6 else len(entries)
    shown = not any(isinstance(entry, ast.Starred) for entry in entries[: place + 1])
    return entries[place] if place < len(entries) and shown else None


def _called(node: ast.expr | None) -> str:
    """The last name of what a call calls; empty for another expression."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _line(kind: type[Any], node: _Class | ast.expr) -> str | None:
    """``file:line``: the file relative to the working directory, or to the folder that holds the package of a class."""
    file = Path(_file_of(kind) or "").absolute()
    cwd = Path.cwd()
    if file.is_relative_to(cwd) and {"site-packages", "dist-packages"}.isdisjoint(file.relative_to(cwd).parts):
        path = file.relative_to(cwd)
    else:
        depth = kind.__module__.count(".") + (file.name == "__init__.py")
        path = file.relative_to(file.parents[depth]) if depth < len(file.parents) else Path(file.name)
    return f"{path.as_posix()}:{node.lineno}"
