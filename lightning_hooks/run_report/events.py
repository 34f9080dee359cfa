"""The edge of a run's file: what a line must hold to be read, whoever wrote it and whatever damaged it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lightning_hooks.declare.plain import from_plain
from lightning_hooks.declare.window import Report

MOST = 1_000_000
"""Names in a list; what is longer is damaged."""
SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?|\*(\d{1,9}))?")


class KnownNames:
    """The names that the lines read so far hold."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._of_tables: dict[tuple[str, str, str, int], list[str]] = {}  # of version 2: monitor, modules, table and number

    def add(self, at: int, names: Sequence[str]) -> None:
        """Take the names of a line, the first of which has the number ``at``; a writer that begins again begins at 0."""
        self._names.update(enumerate(names, at))

    def whole(self, value: Any) -> Any:
        """What :meth:`Names.of_plain` made of plain data, as it was.

        Raises:
            TypeError, ValueError: If it was not made so.
        """
        if not isinstance(value, dict):
            return value
        spans = value.get("names")
        if not isinstance(spans, str) or not set(value) <= {"names", "values"}:
            return {key: self.whole(entry) for key, entry in value.items()}
        names: list[str] = []
        for text in spans.split(","):
            names += self._span(text, MOST - len(names))
        if "values" not in value:
            return names
        values = self.whole(value["values"])
        return dict(zip(names, values if isinstance(values, list) else [values] * len(names), strict=True))

    def _span(self, text: str, most: int) -> list[str]:
        found = SPAN.fullmatch(text)
        if found is None:
            raise ValueError(f"no numbers of names: {text!r:.60}")
        first, last, step, times = (None if part is None else int(part) for part in found.groups())
        assert first is not None
        end = first if last is None else last
        stride = (step or 1) * (1 if end >= first else -1)
        numbers = range(first, end + stride, stride)
        if len(numbers) * (times or 1) > most:
            raise ValueError(f"no such number of names: {text!r:.60}")
        return [self._names.get(number, f"name {number}, lost") for number in numbers] * (1 if times is None else times)

    def whole_tables(self, monitor: str, modules: str, report: dict[str, Any]) -> None:
        """Give the tables of a report their names, which up to version 2 had a number by table and were left out later.

        Raises:
            KeyError: If the line that held them was lost.
        """
        for table, columns in report.items():
            number = columns.pop("names", None) if isinstance(columns, dict) else None
            if type(number) is int:
                mark = (monitor, modules, table, number)
                if "name" in columns:
                    self._of_tables[mark] = columns["name"]
                else:
                    columns["name"] = self._of_tables[mark]


@cache
def kinds() -> dict[str, type[Report]]:
    """The reports' classes by name; with them comes torch, which reading the numbers and the alerts of a run does without."""
    import lightning_hooks.alerts  # noqa: F401  the declarations of all of them

    return {kind.__name__: kind for kind in Report.__subclasses__()}


def by_names(columns: Mapping[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Turn :func:`by_columns` back: name to field to value."""
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


def with_columns(before: Any, field: Any) -> Any:
    """What a line makes of a field: of a table it may hold some columns only, and the others are as they were."""
    if not is_table(before) or not isinstance(field, dict):
        return field
    length = len(field.get("name", before["name"]))
    left = {name: column for name, column in before.items() if not isinstance(column, list) or len(column) == length}
    return {**left, **field}  # of other names, of which there may be none, the columns are other ones too


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


def read_lines(path: Path, on_bad: Callable[[int], object] = bool) -> Iterator[dict[str, Any]]:
    """Read events one by one; ``on_bad`` gets the number of each line that is none, as a crash or a full disk leaves it."""
    names = KnownNames()
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            try:
                event = checked(json.loads(text), names)
            except (TypeError, ValueError, KeyError, RecursionError):
                on_bad(number)
                continue
            yield event


FIELDS: dict[str, Any] = {
    **dict.fromkeys(("package", "torch", "lightning", "started", "ended", "model", "precision", "accelerator", "optimizers"), str),
    **dict.fromkeys(("monitor", "modules", "kind", "how", "error", "error_type", "error_text", "site", "type"), str),
    **dict.fromkeys(("version", "epoch", "at", "step", "devices", "parameters"), int),
    **dict.fromkeys(("seconds", "bytes", "loss"), float),
    "max_epochs": int | None,
    "watched": tuple[Any, ...],
    **dict.fromkeys(("defined_at", "created_at"), str | None),
    **dict.fromkeys(("lr", "metrics"), dict[str, float]),
    "layers": dict[str, tuple[Any, ...]],
    "alerts": tuple[Any, ...],
    "report": dict[str, Any],
}
"""Of all events; a field that is not known here is not looked at."""
LAYERS: dict[str, Any] = {**dict.fromkeys(("name", "type", "detail"), tuple[str, ...]), "parameters": tuple[int, ...]}
NEEDED = {"fit": ("epoch",), "report": ("epoch", "step", "monitor", "modules", "kind", "report"), "source": ("site", "type")}


def checked(event: Any, names: KnownNames) -> dict[str, Any]:
    """Check one line, and put in the names that have numbers in it; ``names`` gets those that it holds.

    A report must be whole; of other events, what holds something else than it should is left out.

    Raises:
        TypeError, ValueError, KeyError: If it is no event, or what it needs is missing or of another kind.
    """
    if not isinstance(event, dict):
        raise TypeError(f"expected an object; got {event!r:.60}")
    kind = from_plain(str, event["event"])
    for field in NEEDED.get(kind, ()):
        from_plain(FIELDS[field], event[field])
    new = event.pop("new_names", None)
    if new is not None:
        names.add(from_plain(int, new["at"]), from_plain(tuple[str, ...], new["name"]))
    kept = {}
    for field, value in event.items():
        try:
            kept[field] = _checked(field, value, names)
        except (TypeError, ValueError, KeyError):
            if kind == "report":
                raise
    if kind == "report":
        names.whole_tables(kept["monitor"], kept["modules"], kept["report"])
        for table in filter(is_table, kept["report"].values()):
            names_of = from_plain(tuple[str, ...], table["name"])
            if any(isinstance(column, list) and len(column) != len(names_of) for column in table.values()):
                raise ValueError(f"columns of another length than {len(names_of)} names")
    return kept


def _checked(field: str, value: Any, names: KnownNames) -> Any:
    value = names.whole(value)
    if field in FIELDS:
        from_plain(FIELDS[field], value)
    if field == "layers":
        for column, expected in LAYERS.items():
            from_plain(expected, value[column])
    return value
