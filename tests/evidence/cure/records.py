"""Write how often the remedies of each kind of alert cured, from tables of cures: ``lightning_hooks/declare/cures.json``.

``python -m tests.evidence.cure.records docs/about/cures.md [runs/cure/bugs.md] [--date 2026-11-24] [--commit a119eaa]`` reads
tables as ``python -m tests.evidence.cure.run`` writes them. By kind: of the trainings that a fault harmed and whose remedies were
this kind's, how many its first or second remedy cured, and how many there are. A kind without remedies cures none of them.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.evidence.records import FILE as RECORDS
from tests.evidence.records import text

FILE = RECORDS.with_name("cures.json")
COLUMNS = ("fault", "harm", "alert", "first try", "second")


def rows_of(markdown: str) -> Iterator[dict[str, str]]:
    """The rows of all tables of cures in a text, by the names of their columns; other tables are left out."""
    header: list[str] = []
    for line in markdown.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if not cells:
            header = []
        elif not header:
            header = cells
        elif set(COLUMNS) <= set(header) and len(cells) == len(header) and set(line) - set("|-"):
            yield dict(zip(header, cells, strict=True))


def cures(rows: Iterable[dict[str, str]], date: str, commit: str) -> dict[str, Any]:
    """What the file holds.

    Args:
        rows: Of tables of cures.
        date: When the trainings ran.
        commit: Of the package that they ran with.
    """
    kinds: dict[str, list[int]] = {}
    for row in rows:
        kind = row["alert"].partition(" at ")[0]
        if row["harm"] == "yes" and kind != "-":
            counts = kinds.setdefault(kind, [0, 0])
            counts[0] += "yes" in (row["first try"], row["second"])
            counts[1] += 1
    return {"date": date, "commit": commit, "kinds": dict(sorted(kinds.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, help="Markdown with tables of cures")
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat(), help="of the trainings")
    parser.add_argument("--commit", help="that they ran with; this one by default")
    options = parser.parse_args()
    commit = options.commit or subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()  # fmt: skip
    rows = [row for table in options.tables for row in rows_of(table.read_text(encoding="utf-8"))]
    FILE.write_text(text(cures(rows, options.date, commit)), encoding="utf-8")


if __name__ == "__main__":
    main()
