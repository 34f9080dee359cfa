"""The edge of a run's file: what a line must hold to be read, whoever wrote it and whatever damaged it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from lightning_hooks.declare.brief import TABLES
from lightning_hooks.declare.plain import from_plain
from lightning_hooks.declare.window import Report

TableNames = dict[tuple[str, str, str], list[str]]
"""Of a monitor's tables (prefix, modules, table): the names that the lines so far hold."""


@cache
def kinds() -> dict[str, type[Report]]:
    """The reports' classes by name; with them comes torch, which reading the numbers and the alerts of a run does without."""
    import lightning_hooks.alerts  # noqa: F401  the declarations of all of them

    return {kind.__name__: kind for kind in Report.__subclasses__()}


def by_names(columns: Mapping[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """A table by columns as rows: name to field to value."""
    fields = [field for field in columns if field != "name"]
    names = columns["name"]
    rows = zip(*(spread(columns[field], len(names)) for field in fields), strict=True) if fields else [() for _ in names]
    return {name: dict(zip(fields, row, strict=True)) for name, row in zip(columns["name"], rows, strict=True)}


def spread(column: Any, length: int) -> list[Any]:
    """A column as a list: one that was written as a single value holds it everywhere."""
    if isinstance(column, list):
        return column
    return [column["all"] if isinstance(column, dict) and set(column) == {"all"} else column] * length


def is_table(field: Any) -> bool:
    """Whether a field of a report, as the lines so far hold it, is a table by columns."""
    return isinstance(field, dict) and isinstance(field.get("name"), list)


def report_of(event: Mapping[str, Any]) -> Any:
    """Make the report of a ``report`` event; None if it is of a kind that is not known here.

    Raises:
        TypeError, ValueError, KeyError: If it does not hold what it should.
    """
    kind = kinds().get(event["kind"])
    if kind is None:
        return None
    fields = {name: by_names(value) if is_table(value) else value for name, value in event["report"].items()}
    return kind.from_dict({**fields, "alerts": event.get("alerts", [])})


def place(event: Mapping[str, Any]) -> int:
    """Where what an event holds belongs: its epoch, or its step where windows are shorter than epochs."""
    return int(event.get("at", event.get("epoch", 0)))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Read events one by one, without the lines that hold none, as a crash or a full disk leaves them."""
    names: TableNames = {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            with suppress(*UNREADABLE):
                yield named(json.loads(text), names)


UNREADABLE = (TypeError, ValueError, LookupError, ArithmeticError, RecursionError, AttributeError)
"""What comes of a line or a file that no run has written."""


def named(event: dict[str, Any], names: TableNames) -> dict[str, Any]:
    """Give the tables of a line the names that they have had since a line before; ``names`` gets those that it holds.

    Raises:
        TypeError, ValueError, KeyError, AttributeError: If it is no event, or its tables are not whole.
    """
    if event["event"] == "report":
        report = event["report"]
        for table in filter(TABLES.__contains__, report):
            columns, key = report[table], (event["monitor"], event["modules"], table)
            if "name" in columns:
                names[key] = columns["name"]
            elif key in names:
                columns["name"] = names[key]
        for columns in filter(is_table, report.values()):
            length = len(from_plain(tuple[str, ...], columns["name"]))
            if any(isinstance(column, list) and len(column) != length for column in columns.values()):
                raise ValueError(f"columns of another length than {length} names")
    return event
