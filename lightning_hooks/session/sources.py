"""Where modules come from: the class of each, the line that defines it, and the line that creates it.

Files are read as they are now; nothing of the user's is called. What no single line shows is None.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from pathlib import Path
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
            lines, first = _source_lines(kind)
            defined = _place(kind, first) if lines else None
            self._known[name] = Source(f"{kind.__module__}.{kind.__qualname__}", defined, self._creation(name))
        return self._known[name]

    def _creation(self, name: str) -> str | None:
        """The line that creates a module, or the container that it is in: in the class of the module around these."""
        outer, _, attribute = name.rpartition(".")
        while outer and self._types.get(outer) in _CONTAINERS:
            outer, _, attribute = outer.rpartition(".")
        creates = re.compile(rf"\s*self\.{re.escape(attribute)}\b(: [\w.]+)? = .*\w\(")
        for kind in self._types.get(outer, object).__mro__:
            lines, first = ([], 0) if kind in (*_CONTAINERS, nn.Module, object) else _source_lines(kind)
            found = [number for number, line in enumerate(lines, first) if creates.match(line)]
            if found:
                return _place(kind, found[0]) if len(found) == 1 else None
        return None


@cache
def _source_lines(kind: type[Any]) -> tuple[list[str], int]:
    """The lines of a class, and the number of the first one in its file; none where no file shows it."""
    try:
        return inspect.getsourcelines(kind)
    except (OSError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        return [], 0


def _place(kind: type[Any], line: int) -> str:
    """``file:line``: the file relative to the working directory, or to the folder that holds the package of a class."""
    file = Path(str(sys.modules[kind.__module__].__file__)).absolute()
    cwd = Path.cwd()
    if file.is_relative_to(cwd) and {"site-packages", "dist-packages"}.isdisjoint(file.relative_to(cwd).parts):
        path = file.relative_to(cwd)
    else:
        depth = kind.__module__.count(".") + (file.name == "__init__.py")
        path = file.relative_to(file.parents[depth]) if depth < len(file.parents) else Path(file.name)
    return f"{path.as_posix()}:{line}"
