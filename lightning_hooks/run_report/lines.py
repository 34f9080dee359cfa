"""A run's file, ``lightning_hooks/reports.jsonl`` in its log directory: one JSON object a line.

A line is an *event*: ``fit`` (training starts, or goes on from a checkpoint), ``report`` (one monitor's epoch), ``epoch`` (what an
epoch took), ``end``. Tables are written by columns, a column of equal values as one value, numbers in five significant digits.
Names are written by numbers, which the line that has them first explains (``new_names``): each is written once, and later lines say
its number. What has not changed since the line before is left out. What was written before a crash is whole. The file is appended
to, and thinned when it grows too large (:mod:`lightning_hooks.run_report.budget`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.brief import TABLES
from lightning_hooks.declare.plain import to_plain


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that it is there whole or, if that fails, as it was before; a device or a pipe is written to as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        with open(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)), "wb") as stream:  # noqa: PTH123  a pipe needs a reader
            os.set_blocking(stream.fileno(), True)
            stream.write(text.encode("utf-8", "backslashreplace"))
        return path
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


LONG = 60
"""Characters from which a list of texts is written by numbers, and a value that has not changed is left out."""


class Names:
    """The names that the lines of a file hold so far, by number.

    A list of names is written by the spans of its numbers, as ``{"names": "0-12,14"}``, a mapping by names as
    ``{"names": "0-12,14", "values": [...]}``.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._written = 0

    def coded(self, texts: Sequence[str]) -> str:
        """The numbers of texts, as spans."""
        return ",".join(_spans([self._numbers.setdefault(text, len(self._numbers)) for text in texts]))

    def new(self) -> dict[str, Any]:
        """The names that no line holds yet, with the number of the first, as a field of the next line; no field without any."""
        first, self._written = self._written, len(self._numbers)
        return {"new_names": {"at": first, "name": list(self._numbers)[first:]}} if first < self._written else {}

    def of_plain(self, value: Any) -> Any:
        """Plain data with the long lists of texts in it, and the long mappings, by the numbers of their names."""
        if isinstance(value, dict):
            if _long(value) and not any(isinstance(entry, (dict, list)) for entry in value.values()):
                return {"names": self.coded(list(value)), "values": self.of_plain(list(value.values()))}
            return {key: self.of_plain(entry) for key, entry in value.items()}
        return {"names": self.coded(value)} if isinstance(value, list) and _long(value) else value


def _spans(numbers: Sequence[int]) -> Iterator[str]:
    """Numbers as spans: ``3``, ``3-9``, ``9-3``, every second ``3-9:2``, the same again ``3*4``."""
    start = 0
    while start < len(numbers):
        first, end = numbers[start], start + 1
        step = numbers[end] - first if end < len(numbers) else 0
        while end < len(numbers) and numbers[end] - numbers[end - 1] == step:
            end += 1
        if end - start < 3:
            end = start + 1
            yield f"{first}"
        elif not step:
            yield f"{first}*{end - start}"
        else:
            yield f"{first}-{numbers[end - 1]}" + (f":{abs(step)}" if abs(step) > 1 else "")
        start = end


def _long(texts: Collection[Any]) -> bool:
    return all(isinstance(text, str) for text in texts) and sum(map(len, texts)) > LONG


FOLDER = "lightning_hooks"
REPORTS = "reports.jsonl"
ALERTS = "alerts.jsonl"
VERSION = 3
"""Of the format; a reader takes older ones."""
ALERTS_VERSION = 2
"""Of the lines in the file of alerts; those of version 1 do not say theirs, and have fewer fields where an alert is cleared."""


def line(event: str, values: Mapping[str, Any], memory: Memory | None = None) -> str:
    """Return one event as a line of strict JSON, with its newline; of a file with a memory with numbers for names."""
    if memory is None:
        return _json({"event": event, **values}) + "\n"
    plain = {key: memory.names.of_plain(to_plain(value)) for key, value in values.items()}
    return _json({"event": event, **plain, **memory.names.new()}) + "\n"


def report_line(monitor: str, modules: str, report: Any, seconds: float, memory: Memory | None = None) -> str:
    """Return a monitor's report as a line, without what the memory says that the lines before hold; whole without a memory.

    The monitor's prefix and its modules distinguish two of a kind; its epoch's end took so many seconds.
    """
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    alerts = fields.pop("alerts", ())
    key = (monitor, modules)
    head = {**position(report), "step": report.step, "monitor": monitor, "modules": modules, "kind": type(report).__name__}
    head |= {"seconds": seconds, **({"alerts": alerts} if memory is None else memory.alerts(key, alerts))}
    opened = line("report", head).rstrip("\n")[:-1]
    if getattr(fields.get("loss"), "recent", None):
        fields["loss"] = dataclasses.replace(fields["loss"], recent=())  # hundreds of values a window; a checkpoint has them
    if getattr(fields.get("learning"), "parameters", None):
        fields["learning"] = dataclasses.replace(fields["learning"], parameters={})  # the file has what each module brings
    names = None if memory is None else memory.names
    parts = {name: _table(value, names) if _is_table(value) else {"": _json(value, names)} for name, value in fields.items()}
    if memory is not None:
        parts = memory.changed(key, parts)
    tables = (f"{json.dumps(name)}:{_object(columns)}" for name, columns in parts.items())
    new = {} if memory is None else memory.names.new()
    named = "".join(f",{json.dumps(key)}:{_json(value)}" for key, value in new.items())
    return f'{opened}{named},"report":{{{",".join(tables)}}}}}\n'


def position(report: Any) -> dict[str, int]:
    """The epoch of a report, and where windows are shorter than epochs its place on the axis of steps."""
    return {"epoch": report.epoch, **({} if report.unit == "epoch" else {"at": report.at})}


Key = tuple[str, str]
"""Of a monitor: its prefix, and the modules that it observes."""


class Memory:
    """What the lines of a file hold so far, so that it need not be written again."""

    def __init__(self) -> None:
        self.names = Names()
        self._numbers: dict[Key, dict[tuple[str, str, str, int | None], int]] = {}  # kind, site, severity, beginning -> number
        self._causes: dict[tuple[Key, int], str] = {}
        self._latest: dict[Key, list[Any]] = {}
        self._known: dict[tuple[Key, str, str], int] = {}  # field and column -> hash of its text

    def forget_names(self) -> None:
        """The file was thinned: names are written again, and what has numbers of them."""
        self.names = Names()
        self._known.clear()

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
                last = entries[-1] if entries else None
                if alert.cause == self._causes[key, number]:
                    entries.append(number)
                elif isinstance(last, dict) and "of" in last and last["cause"] == alert.cause:
                    last["of"].append(number)
                else:
                    entries.append({"cause": alert.cause, "of": [number]})
            plain.append([number, alert.cause])
        same, self._latest[key] = plain == self._latest.get(key), plain
        return {} if same else {"alerts": entries}

    def changed(self, key: Key, parts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
        """Of each field's columns, as JSON, those that have changed; tables of statistics whole."""
        left: dict[str, dict[str, str]] = {}
        for name, columns in parts.items():
            whole = name in TABLES and "name" in columns
            kept = {column: text for column, text in columns.items() if whole or self._is_new(key, name, column, text)}
            if kept:
                left[name] = kept
        return left

    def _is_new(self, key: Key, name: str, column: str, text: str) -> bool:
        mark = (key, name, column)
        new = self._known.get(mark) != hash(text)
        self._known[mark] = hash(text)
        return new or (len(text) < LONG and not column and not text.startswith('{"names"'))


def _object(columns: Mapping[str, str]) -> str:
    if set(columns) == {""}:
        return columns[""]
    return f"{{{','.join(f'{json.dumps(field)}:{text}' for field, text in columns.items())}}}"


def by_columns(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Turn a table of dataclasses by name into lists by field, the names first."""
    fields = [field.name for field in dataclasses.fields(next(iter(table.values())))] if table else []
    return {"name": list(table), **{field: list(map(attrgetter(field), table.values())) for field in fields}}


def append(path: Path, text: str) -> None:
    """Append whole lines to a file, whose folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            text = "\n" * (file.read(1) != b"\n") + text  # what was cut off must not take the next line with it
        file.write(text.encode("utf-8", "backslashreplace"))


def _json(value: Any, names: Names | None = None) -> str:
    plain = _rounded(to_plain(value))
    return json.dumps(plain if names is None else names.of_plain(plain), allow_nan=False, separators=(",", ":"))


def _table(table: Mapping[str, Any], names: Names | None) -> dict[str, str]:
    return {field: _column(values, field, names) for field, values in by_columns(table).items()}


def _column(values: list[Any], field: str, names: Names | None) -> str:
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
    if kinds == {str}:
        return _json(values, names)
    return json.dumps(values, separators=(",", ":")) if kinds <= {int, str, bool, type(None)} else _json(values)


def _all_equal(values: Sequence[Any]) -> bool:
    first = values[0]
    return all(value == first for value in values) or all(value != value for value in values)


_SINGLE = {float, int, bool, str, type(None)}


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(dataclasses.is_dataclass(stats) for stats in value.values())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
