"""Keeping a run's file within bounds: old reports lose their tables, evenly; alerts, times and settings are kept of all windows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_hooks.declare.brief import TABLES
from lightning_hooks.run_report.events import is_table, place, read_lines, with_columns
from lightning_hooks.run_report.lines import Names, write_whole
from lightning_hooks.run_report.run import MOST_EPOCHS

MOST_BYTES = 8_000_000
"""A file that is larger is thinned to half of it."""
STRIDES = tuple(2**power for power in range(21))


def thin(file: Path, most: int = MOST_BYTES, windows: int | None = None) -> bool:
    """Thin a run's file if it is larger than ``most`` bytes, or holds more windows than a reader keeps; whether it was.

    Of the windows of a fit those are kept whole whose number is a multiple of some power of two, with the first and the last. Where
    that is not enough, lines without alerts go too; what later lines leave out because it is in these goes into the next one.

    Args:
        file: The file.
        most: Its largest size; afterwards it has half of that, or little more than one epoch where that is larger.
        windows: How many windows keep their tables, and half of how many keep their lines; None where only the size counts.
    """
    if not file.exists() or (windows is None and file.stat().st_size <= most):
        return False
    limit = MOST_EPOCHS if windows is None else windows
    sizes = [(event, size) for event, size in _sized(file) if event.get("event") == "report"]
    last = {_key(event): place(event) for event, _ in sizes}
    first = {_key(event): place(event) for event, _ in reversed(sizes)}
    ends = {(key, epoch) for ends in (first, last) for key, epoch in ends.items()}
    tables = [(_key(event), place(event), size) for event, size in sizes if not event.get("thinned")]
    places = {place(event) for event, _ in sizes}

    def too_many(stride: int) -> bool:
        whole = [(epoch, size) for key, epoch, size in tables if not epoch % stride or (key, epoch) in ends]
        return sum(size for _, size in whole) > most // 2 or len({epoch for epoch, _ in whole}) > limit

    stride = next((stride for stride in STRIDES if not too_many(stride)), STRIDES[-1])
    kept = {(key, epoch) for key, epoch, _ in tables if not epoch % stride} | ends
    if sum(size for key, epoch, size in tables if (key, epoch) in ends) > most:
        kept = set(last.items())
    before = None
    for scarce in STRIDES:
        dropped = {epoch for epoch in places if epoch % scarce} - {epoch for _, epoch in kept}
        if len(places) - len(dropped) > 2 * limit and scarce < STRIDES[-1]:
            continue
        text = "".join(_rewritten(file, kept, dropped))
        if len(text) <= most or (before is not None and len(text) >= before):  # or as long as that helps
            break
        before = len(text)
    write_whole(file, text)
    return True


def _sized(file: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The events, without their tables, and how much the tables take."""
    for event in read_lines(file):
        report = event.get("report")
        size = 0
        if isinstance(report, dict):
            tables = [report.pop(name) for name in TABLES if name in report]
            size = len(json.dumps([{**table, "name": ()} for table in tables if is_table(table)]))
        yield event, size


def _rewritten(file: Path, kept: set[Any], dropped: set[int]) -> Iterator[str]:
    """The lines of a file, with the tables of ``kept`` alone, and without the lines of ``dropped`` epochs that hold no alerts."""
    names = Names()
    known: dict[tuple[str, str], dict[str, Any]] = {}  # of each monitor, the fields as the lines so far hold them
    written: dict[tuple[str, str], dict[str, Any]] = {}  # as the lines that stay hold them
    for event in read_lines(file):
        kind, report = event["event"], event.get("report")
        if kind == "fit":
            known, written = {}, {}
        if kind == "epoch" and place(event) in dropped:
            continue
        if kind == "report" and isinstance(report, dict):
            key = _key(event)
            whole = (key, place(event)) in kept
            tables = {name: table for name, table in report.items() if name in TABLES}
            fields = known.setdefault(key, {})
            fields |= {name: with_columns(fields.get(name), value) for name, value in report.items() if name not in TABLES}
            if not whole and place(event) in dropped and "alerts" not in event:
                continue
            before, written[key] = written.get(key, {}), dict(fields)
            new = {name: _new(before.get(name), value) for name, value in fields.items() if value is not before.get(name)}
            event |= {"report": {**(tables if whole else {}), **new}, **({"thinned": True} if tables and not whole else {})}
        for field in ("report", "layers"):
            if field in event:
                event[field] = {name: names.of_plain(value) for name, value in event[field].items()}
        yield json.dumps({**event, **names.new()}, separators=(",", ":")) + "\n"


def _new(before: Any, field: Any) -> Any:
    """What a field holds that a line before does not: of a table some of its columns."""
    if not is_table(before) or not is_table(field):
        return field
    return {column: values for column, values in field.items() if values is not before.get(column)}


def _key(event: dict[str, Any]) -> tuple[str, str]:
    return str(event.get("monitor")), str(event.get("modules"))
