"""Names of a package that are imported when they are first asked for: what reads a run's files does without torch."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_from(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``.

    Args:
        package: Its ``__name__``.
        modules: Module, as of a relative import, to the names that are found there.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name], package), name)

    return find
