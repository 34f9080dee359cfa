"""A run read from its file: what each monitor reported in each epoch, how training went and ended."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.brief import TABLES
from lightning_hooks.declare.plain import NONFINITE, from_plain
from lightning_hooks.plots.series import Series
from lightning_hooks.run_report.lines import (
    FOLDER,
    REPORTS,
    is_table,
    place,
    read_lines,
    report_line,
    report_of,
    spread,
    with_columns,
)

MOST_EPOCHS = 300
"""Of a longer run every k-th epoch is kept in full, and the last; alerts are kept of all."""


Columns = dict[str, tuple[tuple[str, ...], dict[str, np.ndarray]]]
"""Table to its names and, by statistic, their numbers: float32, NaN where nothing was measured, infinite where none applies."""


@dataclass(slots=True)
class MonitorRecord:
    """What one monitor reported."""

    prefix: str  # features, gradient_flow, gradient_clip, or that of a monitor of the user's own
    modules: str  # the modules that it observes
    alerts: dict[int, tuple[Alert, ...]] = field(default_factory=dict)  # epoch to its alerts, in the order of epochs, all of them
    seconds: dict[int, float] = field(default_factory=dict)  # epoch to what its end took
    columns: dict[int, Columns] = field(default_factory=dict)  # epoch to the numbers of its tables, of the epochs that are kept
    last: Any = None  # the last report; None if its kind is not known
    unit: str = "epoch"  # what numbers the reports: epoch, or step where windows are shorter than epochs

    @property
    def epochs(self) -> list[int]:
        """All epochs with a report."""
        return list(self.alerts)

    def series(self, table: str, stat: str) -> Series:
        """One statistic of a table (``sites``, ``modules``, ``parameters``, ``optimizers``): names by kept epochs."""
        kept = [columns.get(table, ((), {})) for columns in self.columns.values()]
        order: dict[str, int] = {}
        for names in sorted({names for names, _ in kept}, key=len, reverse=True):
            for name in names:
                order.setdefault(name, len(order))
        values = np.full((len(order), len(kept)), np.inf)
        for index, (names, stats) in enumerate(kept):
            if stat in stats:
                values[[order[name] for name in names], index] = stats[stat]
        applies = ~np.isinf(values).all(axis=1)
        values[np.isinf(values)] = np.nan
        names = tuple(name for name, row in order.items() if applies[row])
        return Series(names, tuple(self.columns), values[applies], TABLES.get(table, "site"), self.unit)

    def values(self, table: str, stat: str, name: str) -> list[float]:
        """One statistic of one row of a table by kept epochs; NaN where it was not measured."""
        series = self.series(table, stat)
        if name not in series.names:
            return [math.nan] * len(series.epochs)
        return [float(value) for value in series.values[series.names.index(name)]]


@dataclass(slots=True)
class Run:
    """A run.

    Attributes:
        path: The folder that holds its files.
        name: What it is called: its place in the log directory.
        unit: What numbers the reports: ``epoch``, or ``step`` where windows are shorter than epochs.
        fit: What the last ``fit`` event says: model, versions, the monitors.
        monitors: What each monitor reported, in the trainer's order.
        timing: Epoch to the ``epoch`` event: what it took.
        end: The ``end`` event; None if training goes on, or was killed.
        damaged: How many lines could not be read, and were left out.
    """

    path: Path
    name: str
    unit: str = "epoch"
    fit: dict[str, Any] = field(default_factory=dict)
    monitors: list[MonitorRecord] = field(default_factory=list)
    timing: dict[int, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    damaged: int = 0

    @property
    def window(self) -> str:
        """What a report covers, in a word: an ``epoch``, or a ``window`` shorter than that."""
        return "epoch" if self.unit == "epoch" else "window"

    def of(self, prefix: str) -> list[MonitorRecord]:
        """The monitors of a kind."""
        return [record for record in self.monitors if record.prefix == prefix and record.epochs]

    @property
    def error(self) -> tuple[str, str] | None:
        """The type and the text of the exception that ended training; None if none did."""
        if self.end is None or self.end.get("how") != "exception":
            return None
        kind, _, text = str(self.end.get("error", "")).partition(": ")  # all there was up to version 0.1
        return str(self.end.get("error_type", kind)), str(self.end.get("error_text", text))

    def loss(self, at: int) -> float:
        """The mean loss of an epoch, or of a window shorter than that; NaN where it is not known."""
        try:
            return float(self.timing[at]["loss"])
        except (KeyError, TypeError, ValueError):
            return math.nan

    @property
    def epochs(self) -> list[int]:
        """All epochs with a report of any monitor."""
        return sorted({epoch for record in self.monitors for epoch in record.epochs})


Found = dict[tuple[str, str], MonitorRecord]


def read_run(path: Path | str) -> Run:
    """Read a run.

    Args:
        path: Its log directory, the folder ``lightning_hooks`` in it, or the file itself.

    Raises:
        FileNotFoundError: If there is no such file, or several runs are below the directory.
        ValueError: If the file holds no run.
    """
    file = find(Path(path))
    bad: list[int] = []
    run = _run_of_events(Run(file.parent, run_name(file)), read_lines(file, bad.append), _epochs_written(file), bad)
    if not run.fit and not run.monitors:
        raise ValueError(f"{file} holds no run: {len(bad)} of its lines could not be read. Was it written by lightning_hooks?")
    return run


def run_of_reports(
    reports: Mapping[tuple[str, str], Sequence[Any]], losses: Mapping[int, float], end: dict[str, Any] | None
) -> Run:
    """Make a run of reports in memory, for where none is written.

    Args:
        reports: The prefix of each monitor and the modules that it observes, to its reports, oldest first.
        losses: The mean loss by the place of a window: its epoch, or its step where windows are shorter.
        end: How training ended; None if it goes on.
    """
    events = (json.loads(report_line(*key, report, math.nan)) for key, found in reports.items() for report in found)
    run = _run_of_events(Run(Path(), "in memory", end=end), events, max(map(len, reports.values()), default=0), [])
    run.timing = {at: {"loss": loss} for at, loss in losses.items()}
    return run


def _run_of_events(run: Run, events: Iterable[Mapping[str, Any]], epochs: int, bad: list[int]) -> Run:
    """Fill in a run from its events; of those that cannot be read ``bad`` gets a 0."""
    found: Found = {}
    known: dict[tuple[str, str], _Known] = {}
    stride = max(1, -(-epochs // MOST_EPOCHS))
    for event in events:
        try:
            _take(run, found, known, event, stride)
        except (TypeError, ValueError, KeyError, OverflowError):
            bad.append(0)
    run.monitors = list(found.values())
    run.damaged = len(bad)
    for key, record in found.items():
        with suppress(TypeError, ValueError, KeyError):
            last = report_of(known[key].latest)
            alerts = next(reversed(record.alerts.values()), ())
            record.last = None if last is None else dataclasses.replace(last, alerts=alerts)
    return run


def find(path: Path) -> Path:
    """The file of a run, from its log directory, from the folder in it, or from the file itself.

    Raises:
        FileNotFoundError: If there is none, or there are several.
    """
    for candidate in (path, path / REPORTS, path / FOLDER / REPORTS):
        if candidate.is_file():
            return candidate
    below = sorted(path.glob(f"**/{FOLDER}/{REPORTS}")) if path.is_dir() else []
    if len(below) == 1:
        return below[0]
    if below:
        some = ", ".join(str(file.parent.parent) for file in below[:6])
        raise FileNotFoundError(f"{len(below)} runs are below {path}; name one of them: {some}{', …' if len(below) > 6 else ''}.")
    raise FileNotFoundError(
        f"no {FOLDER}/{REPORTS} in {path}. A monitor writes it into the log directory of the trainer's first logger; with "
        "logger=False only where report_dir= says."
    )


def run_name(file: Path) -> str:
    """What a run is called: the last two folders of its log directory, such as ``lightning_logs/version_3``."""
    folder = file.resolve().parent
    folder = folder.parent if folder.name == FOLDER else folder
    return "/".join(folder.parts[-2:]) if len(folder.parts) > 2 else folder.name


def _epochs_written(file: Path) -> int:
    """About how many epochs a file holds in full: its lines of one monitor with tables."""
    counts: dict[bytes, int] = {}
    with file.open("rb") as lines:
        for text in lines:
            if text.startswith(b'{"event":"report"') and not text.endswith(b',"thinned":true}\n'):
                key = text[text.find(b'"monitor"') :][:60]
                counts[key] = counts.get(key, 0) + 1
    return max(counts.values(), default=0)


@dataclass(slots=True)
class _Known:
    """What one monitor's lines so far hold that later ones need not repeat."""

    alerts: dict[int, Alert] = field(default_factory=dict)  # number to alert
    fields: dict[str, Any] = field(default_factory=dict)  # the fields of the report that seldom change; of tables by column
    latest: dict[str, Any] = field(default_factory=dict)  # the last line with tables
    whole: int = 0  # lines with tables so far


def _take(run: Run, found: Found, known: dict[tuple[str, str], _Known], event: Mapping[str, Any], stride: int) -> None:
    kind = event["event"]
    if kind == "fit":
        run.fit, run.end = dict(event), None
        _forget(run, found, int(event["epoch" if run.unit == "epoch" else "step"]))
        for memory in known.values():
            memory.alerts = {}
    elif kind == "report":
        epoch = place(event)
        key = (event["monitor"], event["modules"])
        memory = known.setdefault(key, _Known())
        report = _whole(event["report"], memory)
        columns = None if event.get("thinned") else _columns(report)
        record = found.get(key, MonitorRecord(*key))
        alerts = _alerts(event, memory, record)
        found[key] = record
        run.unit = record.unit = "step" if "at" in event else "epoch"
        record.alerts[epoch] = alerts
        record.seconds[epoch] = float(event.get("seconds", "NaN"))
        if columns is None:
            return
        latest = next(reversed(record.columns), None)
        memory.whole += 1
        number = memory.whole - 2  # of the report before, from 0
        if latest is not None and number > 0 and number % stride:
            del record.columns[latest]  # it was the last, for as long as it was
        record.columns[epoch] = columns
        memory.latest = {**event, "report": report, "alerts": []}
    elif kind == "epoch":
        run.timing[place(event)] = dict(event)
    elif kind == "end":
        run.end = dict(event)


def _whole(report: Mapping[str, Any], memory: _Known) -> dict[str, Any]:
    """The report of a line, with what the lines before hold."""
    for name, value in report.items():
        if name not in TABLES:
            memory.fields[name] = with_columns(memory.fields.get(name), value)
    return {**memory.fields, **{name: value for name, value in report.items() if name in TABLES and isinstance(value, dict)}}


def _alerts(event: Mapping[str, Any], memory: _Known, record: MonitorRecord) -> tuple[Alert, ...]:
    """The alerts of a line: in full, or by their numbers as the lines before hold them, or the same as in the last one."""
    if "alerts" not in event:
        return next(reversed(record.alerts.values()), ())
    alerts: list[Alert] = []
    for entry in event["alerts"]:
        if isinstance(entry, Mapping) and "of" in entry:
            known = [memory.alerts[number] for number in entry["of"] if number in memory.alerts]
            alerts += [dataclasses.replace(alert, cause=str(entry["cause"])) for alert in known]
        elif isinstance(entry, Mapping):
            alert: Alert = from_plain(Alert, entry)
            if "id" in entry:
                memory.alerts[int(entry["id"])] = alert
            alerts.append(alert)
        elif entry in memory.alerts:  # else its line was lost
            alerts.append(memory.alerts[entry])
    return tuple(alerts)


def _columns(report: Mapping[str, Any]) -> Columns:
    tables = {name: value for name, value in report.items() if is_table(value)}
    return {name: (tuple(table["name"]), dict(_statistics(table, len(table["name"])))) for name, table in tables.items()}


def _statistics(table: Mapping[str, Any], length: int) -> Iterator[tuple[str, np.ndarray]]:
    for stat, column in table.items():
        values = spread(column, length)
        if len(values) != length:
            raise ValueError(f"{len(values)} values of {stat} for {length} names")
        if stat != "name" and _numeric(values):
            yield stat, _numbers(values)


def _numeric(column: list[Any]) -> bool:
    return all(
        value is None or isinstance(value, (int, float)) or (isinstance(value, str) and value in NONFINITE) for value in column
    )


def _numbers(column: list[Any]) -> np.ndarray:
    values = np.array([np.inf if value is None else float(value) for value in column], dtype=np.float64)
    largest = np.finfo(np.float32).max
    return np.where(np.isfinite(values), values.clip(-largest, largest), values).astype(np.float32)


def _forget(run: Run, found: Found, epoch: int) -> None:
    """Training starts again from an epoch: what a former fit reported of it and of later ones is removed."""
    for key in list(found):
        record = found[key]
        for kept in (record.alerts, record.seconds, record.columns):
            for later in [number for number in kept if number >= epoch]:
                del kept[later]
        if not record.alerts:
            del found[key]
    run.timing = {number: event for number, event in run.timing.items() if number < epoch}
