"""A run's file, ``lightning_hooks/reports.jsonl`` in its log directory: one JSON object a line, only ever appended to.

A line is an *event*: ``fit`` (training starts, or goes on from a checkpoint), ``report`` (one monitor's epoch), ``epoch`` (what an
epoch took), ``end``. Tables are written by columns, numbers in six significant digits: half the size, and
``pandas.DataFrame(line["report"]["modules"])`` reads them. What was written before a crash is whole.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from lightning_hooks.alerts import ClipReport, FeatureReport, GradientFlowReport, RangeReport
from lightning_hooks.alerts.plain import PlainReport, to_plain

FOLDER = "lightning_hooks"
REPORTS = "reports.jsonl"
ALERTS = "alerts.jsonl"
VERSION = 1
"""Of the format; a reader takes older ones."""

KINDS: dict[str, type[PlainReport]] = {kind.__name__: kind for kind in (FeatureReport, GradientFlowReport, ClipReport, RangeReport)}


def line(event: str, values: Mapping[str, Any]) -> str:
    """Return one event as a line of strict JSON, with its newline."""
    return _json({"event": event, **values}) + "\n"


def report_line(monitor: str, modules: str, report: Any, seconds: float) -> str:
    """Return a monitor's report as a line.

    Args:
        monitor: The monitor's prefix, such as ``features``.
        modules: What it listens to, which tells two of a kind apart.
        report: The report.
        seconds: What its epoch's end took.
    """
    fields = {field.name: getattr(report, field.name) for field in dataclasses.fields(report)}
    alerts = fields.pop("alerts", ())
    head = {"epoch": report.epoch, "step": report.step, "monitor": monitor, "modules": modules, "kind": type(report).__name__}
    opened = line("report", {**head, "seconds": seconds, "alerts": alerts}).rstrip("}\n")
    tables = (f"{json.dumps(name)}:{_table(value) if _is_table(value) else _json(value)}" for name, value in fields.items())
    return f'{opened},"report":{{{",".join(tables)}}}}}\n'


def by_columns(table: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Turn a table of dataclasses by name into lists by field, the names first."""
    fields = [field.name for field in dataclasses.fields(next(iter(table.values())))] if table else []
    return {"name": list(table), **{field: list(map(attrgetter(field), table.values())) for field in fields}}


def by_names(columns: Mapping[str, list[Any]]) -> dict[str, dict[str, Any]]:
    """Turn :func:`by_columns` back: name to field to value."""
    fields = [field for field in columns if field != "name"]
    rows = zip(*(columns[field] for field in fields), strict=True) if fields else [() for _ in columns["name"]]
    return {name: dict(zip(fields, row, strict=True)) for name, row in zip(columns["name"], rows, strict=True)}


def report_of(event: Mapping[str, Any]) -> Any:
    """Make the report of a ``report`` event; None if it is of a kind that is not known here.

    Raises:
        TypeError, ValueError, KeyError: If it does not hold what it should.
    """
    kind = KINDS.get(event["kind"])
    if kind is None:
        return None
    fields = {name: by_names(value) if _is_columns(value) else value for name, value in event["report"].items()}
    return kind.from_dict({**fields, "alerts": event.get("alerts", [])})


def read_lines(path: Path, on_bad: Callable[[int], object] = bool) -> Iterator[dict[str, Any]]:
    """Read events one by one. A line that is none, as a crash or a full disk leaves it, is passed over.

    Args:
        path: The file.
        on_bad: Called with the number of each line that was passed over, from 1.
    """
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            try:
                event = json.loads(text)
            except ValueError:
                on_bad(number)
                continue
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                yield event
            else:
                on_bad(number)


def append(path: Path, text: str) -> None:
    """Append whole lines to a file, whose folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torn = path.exists() and path.stat().st_size > 0 and not _ends_line(path)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("\n" * torn + text)  # what was cut off must not take the next line with it


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


def _json(value: Any) -> str:
    return json.dumps(_rounded(to_plain(value)), allow_nan=False, separators=(",", ":"))


def _table(table: Mapping[str, Any]) -> str:
    return f"{{{','.join(f'{json.dumps(field)}:{_column(values)}' for field, values in by_columns(table).items())}}}"


def _column(values: list[Any]) -> str:
    """A column as JSON; of numbers alone in one go, which is ten times faster where there are thousands of layers."""
    kinds = set(map(type, values))
    if kinds == {float}:
        text = (",%.6g" * len(values) % tuple(values))[1:]
        if "n" not in text:  # as nan and inf have
            return f"[{text}]"
    return json.dumps(values, separators=(",", ":")) if kinds <= {int, str, bool, type(None)} else _json(values)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and all(dataclasses.is_dataclass(stats) for stats in value.values())


def _is_columns(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), list)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list) else value
