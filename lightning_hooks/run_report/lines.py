"""A run's file, ``lightning_hooks/reports.jsonl`` in its log directory: one JSON object a line.

A line is an *event*: ``fit`` (training starts, or goes on from a checkpoint), ``report`` (one monitor's epoch), ``epoch`` (what an
epoch took), ``end``. Tables are written by columns, a column of equal values as one value, numbers in five significant digits.
What has not changed since the line before is left out, the names of a table among it. What was written before a crash is whole. The
file is only appended to. When it grows large, fewer and fewer reports have tables.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import TABLES, to_plain


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that it is there whole or, if that fails, as it was before; a device or a pipe is written to as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return path
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


# Of a file in which all reports have tables; then every second one has, after as many more every fourth
MOST_BYTES = 8_000_000
LONG = 60  # characters from which a value that has not changed is left out
FOLDER = "lightning_hooks"
REPORTS = "reports.jsonl"
ALERTS = "alerts.jsonl"
VERSION = 4  # of the format; older ones are not read
# Of the lines in the file of alerts; those of version 1 do not say theirs, and have fewer fields where an alert is cleared.
ALERTS_VERSION = 2


def line(event: str, values: Mapping[str, Any]) -> str:
    """Return one event as a line of strict JSON, with its newline."""
    return _json({"event": event, **values}) + "\n"


def report_line(monitor: str, modules: str, report: Any, seconds: float, memory: Memory | None = None, tables: bool = True) -> str:
    """Return a monitor's report as a line, without what the memory says that the lines before hold; whole without a memory.

    The monitor's prefix and its modules distinguish two of a kind; its epoch's end took so many seconds. Without ``tables`` the
    statistics of sites are left out.
    """
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    alerts = fields.pop("alerts", ())
    key = (monitor, modules)
    head = {
        **position(report),
        "step": report.step,
        "monitor": monitor,
        "modules": modules,
        "kind": type(report).__name__,
        **({} if tables else {"thinned": True}),
        "seconds": seconds,
        **({"alerts": alerts} if memory is None else memory.alerts(key, alerts)),
    }
    # Hundreds of values a window, which a checkpoint has; and of learning the file has what each module brings.
    for name, of_it, nothing in (("loss", "recent", ()), ("learning", "parameters", {})):
        if getattr(fields.get(name), of_it, None):
            fields[name] = dataclasses.replace(fields[name], **{of_it: nothing})
    parts = {
        name: _table(value)
        if isinstance(value, dict) and all(map(dataclasses.is_dataclass, value.values()))
        else {"": _json(value)}
        for name, value in fields.items()
        if tables or name not in TABLES
    }
    if memory is not None:
        parts = memory.changed(key, parts)
    texts = (f"{json.dumps(name)}:{_object(columns)}" for name, columns in parts.items())
    opened = line("report", head).removesuffix("}\n")
    return f'{opened},"report":{{{",".join(texts)}}}}}\n'


def position(report: Any) -> dict[str, int]:
    """The epoch of a report, and where windows are shorter than epochs its place on the axis of steps."""
    return {"epoch": report.epoch, **({} if report.unit == "epoch" else {"at": report.at})}


Key = tuple[str, str]  # of a monitor: its prefix, and the modules that it observes


class Memory:
    """What the lines of a file hold so far, so that it need not be written again."""

    def __init__(self) -> None:
        self._numbers: dict[Key, dict[tuple[str, str, str, int | None], int]] = {}  # kind, site, severity, beginning -> number
        self._causes: dict[tuple[Key, int], str] = {}
        self._latest: dict[Key, list[Any]] = {}
        self._known: dict[tuple[Key, str], int] = {}  # field, or names of a table of statistics -> hash of its text

    def alerts(self, key: Key, alerts: Sequence[Alert]) -> dict[str, Any]:
        """The entry of a monitor's alerts: in full those that are new, else their numbers; none if all is as before."""
        numbers = self._numbers.setdefault(key, {})
        entries: list[Any] = []
        plain: list[Any] = []
        for alert in alerts:
            mark = (alert.kind, alert.site, alert.severity, alert.since_step)
            number = numbers.get(mark)
            if number is None:
                number = numbers[mark] = len(numbers)
                self._causes[key, number] = alert.cause
                entries.append({**to_plain(alert), "id": number})
            else:
                entries.append(number if alert.cause == self._causes[key, number] else {"cause": alert.cause, "of": number})
            plain.append([number, alert.cause])
        same, self._latest[key] = plain == self._latest.get(key), plain
        return {} if same else {"alerts": entries}

    def changed(self, key: Key, parts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        """The fields that have changed, by column, as JSON; tables of statistics always, without names that are as before."""
        left: dict[str, dict[str, str]] = {}
        for name, columns in parts.items():
            statistics = name in TABLES and "name" in columns
            text = columns["name"] if statistics else _object(columns)
            before, self._known[key, name] = self._known.get((key, name)), hash(text)
            new = before != hash(text) or len(text) < LONG
            if new or statistics:
                left[name] = {column: text for column, text in columns.items() if new or column != "name"}
        return left


def _object(columns: Mapping[str, str]) -> str:
    if set(columns) == {""}:
        return columns[""]
    return f"{{{','.join(f'{json.dumps(field)}:{text}' for field, text in columns.items())}}}"


def append(path: Path, text: str) -> None:
    """Append whole lines to a file, whose folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            text = "\n" * (file.read(1) != b"\n") + text  # what was cut off must not take the next line with it
        file.write(text.encode("utf-8", "backslashreplace"))


def _json(value: Any) -> str:
    return json.dumps(_rounded(to_plain(value)), allow_nan=False, separators=(",", ":"))


def _table(table: Mapping[str, Any]) -> dict[str, str]:
    fields = [field.name for field in dataclasses.fields(next(iter(table.values())))] if table else []
    columns = {"name": list(table), **{field: list(map(attrgetter(field), table.values())) for field in fields}}
    return {field: _column(values, field) for field, values in columns.items()}


def _column(values: list[Any], field: str) -> str:
    """A column as JSON; of numbers alone in one go, which is ten times faster where there are thousands of layers."""
    kinds = set(map(type, values))
    if len(values) > 1 and field != "name" and len(kinds) == 1 and _all_equal(values):
        if kinds <= _SINGLE:
            return _json(values[0])
        if kinds == {tuple}:
            return _json({"all": values[0]})
    if kinds == {float}:
        text = (",%.5g" * len(values) % tuple(values))[1:]
        if "n" not in text:  # as nan and inf have
            return f"[{text}]"
    return json.dumps(values, separators=(",", ":")) if kinds <= {int, str, bool, type(None)} else _json(values)


def _all_equal(values: Sequence[Any]) -> bool:
    first = values[0]
    return all(value == first for value in values) or (first != first and all(value != value for value in values))


_SINGLE = {float, int, bool, str, type(None)}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
