"""Names made safe: for a file system, for MLflow, for Markdown. Module names are the user's, and may hold anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2s

from lightning_hooks.trackers.console import cell

_UNSAFE = re.compile(r"[^A-Za-z0-9_. -]+")
_LONGEST = 80
LONGEST_CELL = 60
"""The longest text with spaces that is put into a table."""


def safe_path(tag: str) -> str:
    """Turn a tag into a relative path of plain ASCII, spaces among it, that stays below where it is put.

    Its parts between slashes become folders. A part that had to be changed ends in a hash of what it was, so that two tags never
    share a file.
    """
    return "/".join(_safe_part(part) for part in tag.split("/") if part) or _safe_part(tag)


def _safe_part(part: str) -> str:
    safe = _UNSAFE.sub("_", part)[:_LONGEST].strip(". ") or "_"
    return safe if safe == part else f"{safe}-{_digest(part)}"


def metric_name(tag: str, longest: int = 250) -> str:
    """Turn a tag into a name that MLflow takes: letters, digits, ``_-. /``, no ``..``, at most 250 characters.

    A tag that had to be changed ends in a hash of what it was, so that two tags never share a curve.
    """
    safe = re.sub(r"[^A-Za-z0-9_\-. /]", "_", tag)
    safe = "/".join(part if part.strip(".") else "_" for part in safe.split("/"))
    if safe == tag and len(tag) <= longest:
        return tag
    return f"{safe[: longest - 9]}-{_digest(tag)}"


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
