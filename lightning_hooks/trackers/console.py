"""Plain text for the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TextIO

_COLOURS = {"critical": "31", "warning": "33", "info": "36"}


def table_lines(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lay out rows in columns: text to the left, numbers to the right, in 4 significant digits.

    Args:
        header: A title per column.
        rows: Strings, numbers, or None (shown as a dash).

    Returns:
        Lines without a newline, the header first.
    """
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(header), *cells]) for column in range(len(header))]
    numeric = [all(not isinstance(row[column], str) for row in rows) and bool(rows) for column in range(len(header))]

    def line(values: Sequence[str]) -> str:
        padded = [
            value.rjust(width) if right else value.ljust(width) for value, width, right in zip(values, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return [line(list(header)), *(line(row) for row in cells)]


def some(names: Sequence[str], most: int = 6) -> str:
    """Join names, and count those beyond ``most``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def cell(value: object) -> str:
    """Write one value: a dash for None, 4 significant digits of a number."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def coloured(text: str, severity: str, stream: TextIO | None = None) -> str:
    """Colour a line by its severity (red, yellow, cyan) where it goes to a terminal; https://no-color.org is respected.

    Args:
        text: The line.
        severity: ``critical``, ``warning`` or ``info``.
        stream: Where it goes; None for standard error.
    """
    stream = sys.stderr if stream is None else stream
    plain = "NO_COLOR" in os.environ or not getattr(stream, "isatty", bool)()
    return text if plain or severity not in _COLOURS else f"\033[{_COLOURS[severity]}m{text}\033[0m"
