"""Plain text for the terminal; names made safe for a file system, MLflow and Markdown: module names may hold anything."""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2s
from itertools import takewhile
from typing import TextIO

LONGEST = 34


def shared_prefix(names: Sequence[str]) -> str:
    """The leading components that all names share and that name none of them, with the dot: ``"model.net."``."""
    if len(names) < 2:
        return ""
    levels = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return "".join(f"{level[0]}." for level in takewhile(lambda level: len(set(level)) == 1, levels))


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name that fits: its middle is left out, since its end matters most."""
    if len(name) <= longest:
        return name
    head = longest // 3
    return f"{name[:head]}…{name[len(name) - (longest - head - 1) :]}"


_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
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


class Table(str):
    """A table as plain text, every line indented, its names shortened where the terminal is too narrow for all of them.

    Args:
        header: A title per column.
        rows: As for :func:`table_lines`.
    """

    __slots__ = ()

    def __new__(cls, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
        """Lay it out."""
        lines = table_lines(header, rows)
        excess = max(map(len, lines)) + 2 - shutil.get_terminal_size((80, 24)).columns
        if excess > 0 and rows and isinstance(rows[0][0], str):
            room = max(max(len(cell(row[0])) for row in rows) - excess, 12)
            lines = table_lines(header, [(shortened(cell(row[0]), room), *row[1:]) for row in rows])
        return super().__new__(cls, "\n".join(f"  {line}" for line in lines))

    @classmethod
    def of(cls, what: str, columns: Mapping[str, str], found: Iterable[tuple[str, object]]) -> Table:
        """A table of statistics, a row for each name.

        Args:
            what: The title of the names.
            columns: The titles of the others, each with its statistic.
            found: Names with their statistics.
        """
        return cls((what, *columns), [(name, *(getattr(stats, stat) for stat in columns.values())) for name, stats in found])


def show(lines: Iterable[str], stream: TextIO | None = None) -> None:
    """Print lines, in one write so that a progress bar does not tear them.

    Characters that the stream's encoding lacks are escaped. Nothing is written to a stream that is closed or fails: it is no reason
    to end a training.

    Args:
        lines: The texts.
        stream: Where to; None for standard output.
    """
    stream = sys.stdout if stream is None else stream
    if stream is None:  # a program without a console
        return
    text = "".join(f"{line}\n" for line in lines)  # with its last line break: in Jupyter rich's stdout recurses over half a line
    with suppress(OSError, ValueError):
        try:
            stream.write(text)
        except UnicodeError:
            encoding = getattr(stream, "encoding", None) or "ascii"
            stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


_OF_OPTIMIZER = re.compile(r"(\d+)-(\w+?)(?:\.group(\d+)\.(\d+)(?::\d+)?)?")


def readable(site: str) -> str:
    """The name of a site in a message.

    Example:
        >>> readable("0-AdamW"), readable("1-SGD.group0.46"), readable("net.0.weight")
        ('optimizer AdamW', 'parameter 46 of SGD 1 (group 0)', 'net.0.weight')
    """
    found = _OF_OPTIMIZER.fullmatch(site)
    if found is None:
        return site
    place, name, group, parameter = found.groups()
    optimizer = name if place == "0" else f"{name} {place}"
    return f"optimizer {optimizer}" if group is None else f"parameter {parameter} of {optimizer} (group {group})"


def visible(text: str) -> str:
    """Text without control, formatting and surrogate characters, which could hide or reverse the text next to them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char.encode("unicode_escape").decode() if unicodedata.category(char) in _INVISIBLE else char for char in text)


def some(names: Sequence[str], most: int = 6) -> str:
    """Join names, and count those beyond ``most``."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def cell(value: object) -> str:
    """Write one value: a dash for None, 4 significant digits of a number."""
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def coloured(text: str, severity: str, stream: TextIO | None = None) -> str:
    """Colour a line by its severity (red, yellow, cyan) where it goes to a terminal; https://no-color.org is respected.

    Args:
        text: The line.
        severity: ``critical``, ``warning`` or ``info``.
        stream: Where it goes; None for standard error.
    """
    stream = sys.stderr if stream is None else stream
    with suppress(OSError, ValueError):  # it is closed
        if severity in _COLOURS and "NO_COLOR" not in os.environ and getattr(stream, "isatty", bool)():
            return f"\033[{_COLOURS[severity]}m{text}\033[0m"
    return text


_UNSAFE = re.compile(r"[^A-Za-z0-9_. -]+")
_LONGEST = 80
LONGEST_METRIC = 250
LONGEST_CELL = 60  # the longest text with spaces that is put into a table


def safe_path(tag: str) -> str:
    """Turn a tag into a relative path of plain ASCII, spaces among it, that stays below where it is put.

    Its parts between slashes become folders. A part that had to be changed ends in a hash of what it was, so that two tags never
    share a file.
    """
    return "/".join(_safe_part(part) for part in tag.split("/") if part) or _safe_part(tag)


def _safe_part(part: str) -> str:
    safe = _UNSAFE.sub("_", part)[:_LONGEST].strip(". ") or "_"
    return safe if safe == part else f"{safe}-{_digest(part)}"


def metric_name(tag: str) -> str:
    """Turn a tag into a name that MLflow takes: letters, digits, ``_-. /``, no ``..``, at most 250 characters.

    A tag that had to be changed ends in a hash of what it was, so that two tags never share a curve.
    """
    safe = re.sub(r"[^A-Za-z0-9_\-. /]", "_", tag)
    safe = "/".join(part if part.strip(".") else "_" for part in safe.split("/"))
    return tag if safe == tag and len(tag) <= LONGEST_METRIC else f"{safe[: LONGEST_METRIC - 9]}-{_digest(tag)}"


def _digest(text: str) -> str:
    return blake2s(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()


def markdown_text(text: str) -> str:
    """Escape what Markdown or HTML would take as markup, in one line."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    escaped = re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", escaped)
    return re.sub(r"\s+", " ", escaped)


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out rows as a Markdown table, numbers in 4 significant digits.

    Sentences are listed below it: in the table they would leave the other columns no room.
    """
    texts = [[str(row[place]) for row in rows if isinstance(row[place], str)] for place in range(len(columns))]
    sentences = [place for place, found in enumerate(texts) if any(len(text) > LONGEST_CELL and " " in text for text in found)]
    short = [place for place in range(len(columns)) if place not in sentences]
    cells = [[markdown_text(cell(row[place])) for place in short] for row in rows]
    lines = [[markdown_text(columns[place]) for place in short], ["---"] * len(short), *cells]
    table = [f"| {' | '.join(line)} |" for line in lines]
    for place in sentences:
        table += ["", f"*{markdown_text(columns[place])}:*", ""]
        for row in rows:
            about = " ".join(str(row[other]) for other in short if isinstance(row[other], str))
            table += [f"- **{markdown_text(about)}**: {markdown_text(cell(row[place]))}"] if row[place] else []
    return "\n".join(table)
