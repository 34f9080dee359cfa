"""One file or folder for each capability: what it records, its report, its rules with their texts, its section of a report."""

from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType


def modules(ending: str) -> list[ModuleType]:
    """The modules of capabilities whose name ends so, such as ``rules``."""
    return [import_module(file.name) for file in walk_packages(__path__, f"{__name__}.") if file.name.endswith(ending)]
