"""A run read from its file, also while that is being written: what each monitor reported, how training went and ended."""

from __future__ import annotations

import dataclasses
import json
import math
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import NONFINITE, TABLES, from_plain
from lightning_hooks.plots.canvas import within
from lightning_hooks.run_report.lines import FOLDER, REPORTS, report_line
from lightning_hooks.run_report.recorded import (
    UNREADABLE,
    Columns,
    MonitorRecord,
    Run,
    Source,
    TableNames,
    is_table,
    named,
    place,
    spread,
)

__all__ = ["MonitorRecord", "Run", "RunReader", "find", "read_run", "run_name", "run_of_reports"]


def read_run(path: Path | str) -> Run:
    """Read a run.

    Args:
        path: Its log directory, the folder ``lightning_hooks`` in it, or the file itself.

    Raises:
        FileNotFoundError: If there is no such file, or several runs are below the directory.
        ValueError: If the file holds no run.
    """
    file = find(Path(path))
    reader = RunFile(file, run_name(file), tables=True)
    reader.update()
    run = reader.run
    if not run.fit and not run.monitors:
        raise ValueError(
            f"{file} holds no run: {run.damaged} of its lines could not be read. Was it written by this version of lightning_hooks?"
        )
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
    run = Run(Path(), "in memory", end=end)
    reader = RunReader(run)
    for event in (json.loads(report_line(*key, report, math.nan)) for key, found in reports.items() for report in found):
        with suppress(*UNREADABLE):  # of a kind of the user's own
            reader.take(event)
    run.timing = {at: {"loss": loss} for at, loss in losses.items()}
    return run


def find(path: Path) -> Path:
    """The file of a run, from its log directory, from the folder in it, or from the file itself.

    Raises:
        FileNotFoundError: If there is none, or there are several.
    """
    for candidate in (path, path / REPORTS, path / FOLDER / REPORTS):
        if candidate.is_file():
            return candidate
    below = sorted(filter(Path.is_file, path.glob(f"**/{FOLDER}/{REPORTS}")))
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


class RunReader:
    """Fills in a run from its events, one by one, also while it is being written.

    Args:
        run: The run, empty.
        tables: Whether numbers are kept at all; without them there are alerts, losses and names.
    """

    def __init__(self, run: Run, tables: bool = True) -> None:
        self.run, self._tables = run, tables
        self._found: dict[tuple[str, str], MonitorRecord] = {}
        # What the lines of each monitor so far hold that later ones need not repeat.
        self._alerts = defaultdict[tuple[str, str], dict[int, Alert]](dict)  # by their numbers
        self._fields = defaultdict[tuple[str, str], dict[str, Any]](dict)  # of the report, but for tables of statistics

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event.

        Raises:
            TypeError, ValueError, KeyError, OverflowError: If it does not hold what it should; the run is as before then.
        """
        run, kind = self.run, event["event"]
        if kind == "fit":
            run.fit, run.end = dict(event), None
            self._forget(int(event["epoch" if run.unit == "epoch" else "step"]))
            self._alerts.clear()
        elif kind == "report":
            self._take_report(event)
        elif kind == "epoch":
            run.timing[place(event)] = dict(event)
        elif kind == "end":
            run.end = dict(event)
        elif kind == "source":
            run.sources[event["site"]] = Source(event["type"], event.get("defined_at"), event.get("created_at"))
        run.monitors = list(self._found.values())

    def _take_report(self, event: Mapping[str, Any]) -> None:
        epoch, key = place(event), (event["monitor"], event["modules"])
        fields, given = self._fields[key], event["report"]
        fields |= {name: value for name, value in given.items() if name not in TABLES}
        report = {**fields, **{name: value for name, value in given.items() if name in TABLES and isinstance(value, dict)}}
        columns = None if event.get("thinned") else _columns(report) if self._tables else {}
        record = self._found.get(key, MonitorRecord(*key))
        alerts = _alerts(event, self._alerts[key], record)
        self._found[key] = record
        self.run.unit = record.unit = "step" if "at" in event else "epoch"
        record.alerts[epoch] = alerts
        if columns is not None:
            record.columns[epoch] = columns
            record.latest = {**event, "report": report, "alerts": []}

    def _forget(self, epoch: int) -> None:
        """Training starts again from an epoch: what a former fit reported of it and of later ones is removed."""
        for record in self._found.values():
            record.alerts = {at: alerts for at, alerts in record.alerts.items() if at < epoch}
            record.columns = {at: columns for at, columns in record.columns.items() if at < epoch}
        self._found = {key: record for key, record in self._found.items() if record.alerts}
        self.run.timing = {at: event for at, event in self.run.timing.items() if at < epoch}


def _alerts(event: Mapping[str, Any], known: dict[int, Alert], record: MonitorRecord) -> tuple[Alert, ...]:
    """The alerts of a line: in full, or by their numbers as the lines before hold them, or the same as in the last one."""
    if "alerts" not in event:
        return next(reversed(record.alerts.values()), ())
    alerts: list[Alert] = []
    for entry in event["alerts"]:
        if isinstance(entry, Mapping) and "of" in entry:
            if entry["of"] in known:
                alerts.append(dataclasses.replace(known[entry["of"]], cause=str(entry["cause"])))
        elif isinstance(entry, Mapping):
            alert: Alert = from_plain(Alert, entry)
            if "id" in entry:
                known[int(entry["id"])] = alert
            alerts.append(alert)
        elif entry in known:  # else its line was lost
            alerts.append(known[entry])
    return tuple(alerts)


def _columns(report: Mapping[str, Any]) -> Columns:
    tables = {name: value for name, value in report.items() if is_table(value)}
    learning = report.get("learning")
    if isinstance(learning, dict) and isinstance(modules := learning.get("modules"), dict):
        tables["learning"] = {"name": [*modules], "share": [*modules.values()]}
    return {name: (tuple(table["name"]), dict(_statistics(table, len(table["name"])))) for name, table in tables.items()}


def _statistics(table: Mapping[str, Any], length: int) -> Iterator[tuple[str, np.ndarray]]:
    for name, column in table.items():
        values = spread(column, length)
        numeric = all(isinstance(value, int | float | None) or (isinstance(value, str) and value in NONFINITE) for value in values)
        if name != "name" and numeric:
            numbers = np.array([np.inf if value is None else float(value) for value in values], dtype=np.float64)
            largest = np.finfo(np.float32).max
            yield name, np.where(np.isfinite(numbers), within(numbers, -largest, largest), numbers).astype(np.float32)


MOST_BYTES = 256_000_000  # of a file that is read; the monitors' grow to more only in very long runs


class RunFile:
    """Reads a run, and goes on where it was when the file has grown; a line that is being written is read once it is whole.

    Args:
        path: The file.
        name: What the run is called.
        tables: Whether numbers are kept; without them a list of many runs is small.
    """

    def __init__(self, path: Path, name: str, tables: bool) -> None:
        self.path, self._name, self._tables = path, name, tables
        self._mark = (0, 0, 0, 0)  # device, inode, size, when it was written last
        self._begin()

    def _begin(self) -> None:
        self.run = Run(self.path.parent, self._name)
        self._reader = RunReader(self.run, self._tables)
        self._names: TableNames = {}
        self._offset = 0

    def update(self) -> bool:
        """Read what is new; whether there was anything.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is no plain file, or larger than what is read.
        """
        known = self.path.stat()
        if not stat.S_ISREG(known.st_mode):
            raise ValueError(f"{self.path.name} is no plain file.")
        if known.st_size > MOST_BYTES:
            raise ValueError(f"{self.path.name} has {known.st_size / 1e6:.0f} MB; up to {MOST_BYTES / 1e6:.0f} MB are read.")
        mark = known.st_dev, known.st_ino, known.st_size, known.st_mtime_ns
        if mark == self._mark:
            return False
        with self.path.open("rb") as file:
            if mark[:2] != self._mark[:2] or mark[2] <= self._mark[2]:  # another one is in its place
                self._begin()
            self._mark = mark
            file.seek(self._offset)
            for line in file:
                if line.endswith(b"\n"):
                    self._offset += len(line)
                    self._take(line)
        return True

    @property
    def updated(self) -> float:
        """When the file was written last, in seconds of the clock."""
        return self._mark[-1] / 1e9

    def _take(self, line: bytes) -> None:
        try:
            self._reader.take(named(json.loads(line.decode("utf-8", "replace")), self._names))
        except UNREADABLE:
            self.run.damaged += 1
