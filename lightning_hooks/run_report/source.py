"""Where the code of a module stands, as a run's file holds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"(?![/\\~]|\w:)(?!.*(?:^|[/\\])\.\.(?:[/\\]))[^\0]{1,200}:\d{1,7}")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the code of a module stands. A line is ``file:line``, the file relative to the working directory or its package.

    Attributes:
        type: The full name of its class.
        defined_at: The line of the class; None where no file shows it.
        created_at: The line that creates the module; None where the source does not show it.
    """

    type: str
    defined_at: str | None = None
    created_at: str | None = None


def source_of(event: Mapping[str, Any]) -> Source:
    """The source that a ``source`` event says; a line whose file is not relative is left out."""
    defined, created = (
        line if isinstance(line, str) and _LINE.fullmatch(line) else None
        for line in (event.get("defined_at"), event.get("created_at"))
    )
    return Source(event["type"], defined, created)
