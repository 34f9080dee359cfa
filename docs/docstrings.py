"""How docstrings are read for the reference: an ``Example:`` is code, and ``:class:`~package.Name` `` is shown as the name."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Docstrings(griffe.Extension):
    """Changes docstrings when they are collected."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change one."""
        if obj.docstring is not None:
            text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)
