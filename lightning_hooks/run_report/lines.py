"""A run's file, ``lightning_hooks/reports.jsonl`` in its log directory: one JSON object a line.

A line is an *event*: ``fit`` (training starts, or goes on from a checkpoint), ``report`` (one monitor's epoch), ``epoch`` (what an
epoch took), ``end``. Tables are written by columns, a column of equal values as one value, numbers in five significant digits.
What has not changed since the line before is left out, the names of a table among it. What was written before a crash is whole. The
file is appended to. When it grows too large, old reports lose their tables, evenly.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import TABLES, to_plain
from lightning_hooks.run_report.recorded import is_table, place, read_lines


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
    # Hundreds of values a window, which a checkpoint has; and of learning the file has what each module brings.
    for name, of_it, nothing in (("loss", "recent", ()), ("learning", "parameters", {})):
        if getattr(fields.get(name), of_it, None):
            fields[name] = dataclasses.replace(fields[name], **{of_it: nothing})
    parts = {name: _table(value) if _is_table(value) else {"": _json(value)} for name, value in fields.items()}
    if memory is not None:
        parts = memory.changed(key, parts)
    tables = (f"{json.dumps(name)}:{_object(columns)}" for name, columns in parts.items())
    return f'{opened},"report":{{{",".join(tables)}}}}}\n'


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

    def forget_fields(self) -> None:
        """The file was thinned: what has not changed is written again, once."""
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


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(dataclasses.is_dataclass(stats) for stats in value.values())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value


MOST_EPOCHS = 300  # windows that keep their tables when a file is thinned, at most; alerts, times and settings are kept of all
MOST_BYTES = 8_000_000  # a file that is larger is thinned to half of it
STRIDES = tuple(2**power for power in range(21))


def thin(file: Path, most: int = MOST_BYTES, windows: int | None = None) -> bool:
    """Thin a run's file if it is larger than ``most`` bytes, or holds more windows than it is to; whether it was.

    Of the windows of a fit those are kept whole whose number is a multiple of some power of two, with the first and the last. Of
    too many, lines without alerts go too; what later lines leave out because it is in these goes into the next one.

    Args:
        file: The file.
        most: Its largest size; afterwards its tables have half of that, or those of the first and the last window.
        windows: How many windows keep their tables, and half of how many keep their lines; None where only the size counts.
    """
    if not file.exists() or (windows is None and file.stat().st_size <= most):
        return False
    limit = MOST_EPOCHS if windows is None else windows
    reports = [(_key(event), place(event), _size(event)) for event in read_lines(file) if event["event"] == "report"]
    sizes = Counter[int]()
    for _, at, size in reports:
        sizes[at] += size
    ends = {min(sizes, default=0), *{key: at for key, at, _ in reports}.values()}  # the first, and the last of each monitor

    def every(stride: int) -> set[int]:
        return {at for at in sizes if not at % stride} | ends

    def few(stride: int) -> bool:
        tables = [sizes[at] for at in every(stride) if sizes[at]]
        return sum(tables) <= most // 2 and len(tables) <= limit

    whole = every(next(filter(few, STRIDES), STRIDES[-1]))
    lines = whole | every(next((stride for stride in STRIDES if len(whole | every(stride)) <= 2 * limit), STRIDES[-1]))
    write_whole(file, "".join(_rewritten(file, whole, sizes.keys() - lines)))
    return True


def _size(event: dict[str, Any]) -> int:
    """How much the tables of a report take; 0 where it has none any more."""
    tables = [table for name, table in event["report"].items() if name in TABLES and is_table(table)]
    return len(json.dumps([{**table, "name": ()} for table in tables])) if tables else 0


def _rewritten(file: Path, kept: set[int], dropped: set[int]) -> Iterator[str]:
    """The lines of a file, with the tables of ``kept`` alone, and without the lines of ``dropped`` epochs that hold no alerts."""
    known: dict[tuple[str, str], dict[str, Any]] = {}  # of each monitor, the fields as the lines so far hold them
    written: dict[tuple[str, str], dict[str, Any]] = {}  # as the lines that stay hold them, of tables the names
    for event in read_lines(file):
        kind, report = event["event"], event.get("report")
        if kind == "fit":
            known, written = {}, {}
        if kind == "epoch" and place(event) in dropped:
            continue
        if kind == "report" and isinstance(report, dict):
            key = _key(event)
            whole = place(event) in kept
            tables = {name: table for name, table in report.items() if name in TABLES}
            fields = known.setdefault(key, {})
            fields |= {name: value for name, value in report.items() if name not in TABLES}
            if not whole and place(event) in dropped and "alerts" not in event:
                continue
            before, names = written.get(key, {}), {name: table.get("name") for name, table in tables.items() if whole}
            written[key] = {**before, **fields, **names}
            new = {name: value for name, value in fields.items() if value is not before.get(name)}
            for name, table in tables.items() if whole else ():
                new[name] = {column: v for column, v in table.items() if column != "name" or v != before.get(name)}
            event |= {"report": new, **({"thinned": True} if tables and not whole else {})}
        yield json.dumps(event, separators=(",", ":")) + "\n"


def _key(event: dict[str, Any]) -> tuple[str, str]:
    return str(event.get("monitor")), str(event.get("modules"))
