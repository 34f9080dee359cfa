"""All families of the exam: importing this fills the list, with those whose libraries are installed."""

from __future__ import annotations

import importlib
import pkgutil

import tests.evidence.exam
from tests.evidence.exam.cases import CASES

for _module in pkgutil.iter_modules(tests.evidence.exam.__path__):
    if _module.name.endswith(("_healthy", "_faults")):
        importlib.import_module(f"tests.evidence.exam.{_module.name}")

__all__ = ["CASES"]
