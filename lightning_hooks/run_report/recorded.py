"""What a run's file says: its lines, what each monitor reported, how training went and ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lightning_hooks.declare.alert import Alert, limit_of
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.declare.plain import TABLES, from_plain
from lightning_hooks.declare.window import Report
from lightning_hooks.plots.series import Series, window_of

# Of a monitor's tables (prefix, modules, table): the names that the lines so far hold.
TableNames = dict[tuple[str, str, str], list[str]]


@cache
def report_kinds() -> dict[str, type[Report]]:
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
    """Make the report of a ``report`` event.

    Raises:
        TypeError, ValueError, KeyError: If it does not hold what it should, or is of a kind that is not known here.
    """
    fields = {name: by_names(value) if is_table(value) else value for name, value in event["report"].items()}
    return report_kinds()[event["kind"]].from_dict({**fields, "alerts": event.get("alerts", [])})


def place(event: Mapping[str, Any]) -> int:
    """Where what an event holds belongs: its epoch, or its step where windows are shorter than epochs."""
    return int(event.get("at", event.get("epoch", 0)))


# What comes of a line or a file that no run has written.
UNREADABLE = (TypeError, ValueError, LookupError, ArithmeticError, RecursionError, AttributeError)


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


class DrawnStatistic(NamedTuple):
    """A statistic that is drawn as a heat map, or compared between runs."""

    prefix: str  # of the monitor
    table: str
    stat: str
    name: str  # a short one
    caption: str = ""  # of its heat map; empty without one


# In the order in which they are shown.
STATISTICS = (
    DrawnStatistic("gradient_flow", "modules", "rms", "gradient RMS", "Gradient RMS at each module's output"),
    DrawnStatistic("gradient_flow", "parameters", "update_ratio", "update ratio", "Update ratio of each parameter"),
    DrawnStatistic("features", "sites", "std", "output std", "Spread (std) of each module's output"),
    DrawnStatistic("features", "sites", "zero_fraction", "zeros", "Share of zeros in each module's output"),
    DrawnStatistic("features", "sites", "dead_fraction", "dead units", "Share of dead units of each rectifier"),
    DrawnStatistic("features", "sites", "saturated_fraction", "saturated", "Share of saturated values of each bounded activation"),
    DrawnStatistic("features", "sites", "nonfinite_fraction", "NaN or infinite", "Share of NaN and infinite values in the outputs"),
    DrawnStatistic(
        "gradient_flow", "modules", "nonfinite_fraction", "NaN or infinite", "Share of NaN and infinite values in the gradients"
    ),
    DrawnStatistic("gradient_clip", "optimizers", "norm_before", "norm before clipping"),
    DrawnStatistic("gradient_clip", "optimizers", "rate", "steps clipped"),
)


# Layers in a list, and layers and windows in a heat map, so that the page of a large run stays small; alerts half as many.
MOST_DRAWN = 300


def severities(record: MonitorRecord) -> dict[str, str]:
    """The highest severity of each site's alerts in the last epoch; a parameter's counts for its module too."""
    alerts = sorted(next(reversed(record.alerts.values()), ()), key=lambda alert: -gravity(alert.severity))
    of_modules: dict[str, str] = {alert.site.rpartition(".")[0]: alert.severity for alert in alerts}
    return of_modules | {alert.site: alert.severity for alert in alerts}


def chosen(names: Sequence[str], severities: Mapping[str, str], most: int) -> list[str]:
    """Which of too many names are drawn: all that have an alert, as far as there is room, and every k-th of the others."""
    if len(names) <= most:
        return list(names)
    affected = [name for name in names if severities.get(name) in ("critical", "warning")][:most]
    others = [name for name in names if name not in set(affected)]
    room = max(most - len(affected), most // 4)
    kept = {*affected, *others[:: max(1, -(-len(others) // room))]}
    return [name for name in names if name in kept]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the code of a module stands. A line is ``file:line``, the file relative to the working directory or its package."""

    type: str  # the full name of its class
    defined_at: str | None = None  # the line of the class; None where no file shows it
    created_at: str | None = None  # the line that creates the module; None where the source does not show it


def number_of(value: Any) -> float:
    """A number of the run's file, where what is not finite is a text; NaN for what is none."""
    with suppress(TypeError, ValueError):
        return float(value)
    return math.nan


# Table to its names and, by statistic, their numbers: float32, NaN where nothing was measured, infinite where none applies.
Columns = dict[str, tuple[tuple[str, ...], dict[str, np.ndarray]]]


@dataclass(slots=True)
class MonitorRecord:
    """What one monitor reported."""

    prefix: str  # features, gradient_flow, gradient_clip, or that of a monitor of the user's own
    modules: str  # the modules that it observes
    alerts: dict[int, tuple[Alert, ...]] = field(default_factory=dict)  # epoch to its alerts, in the order of epochs, all of them
    columns: dict[int, Columns] = field(default_factory=dict)  # epoch to the numbers of its tables, of the epochs that are kept
    latest: dict[str, Any] | None = None  # the last event with tables, with all that earlier ones hold
    unit: str = "epoch"  # what numbers the reports: epoch, or step where windows are shorter than epochs

    @property
    def epochs(self) -> list[int]:
        """All epochs with a report."""
        return list(self.alerts)

    @property
    def last(self) -> Any:
        """The last report; None if its kind is not known. Its class comes with torch."""
        if self.latest is not None:
            with suppress(TypeError, ValueError, KeyError):
                return replace(report_of(self.latest), alerts=next(reversed(self.alerts.values()), ()))
        return None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the last report in plain types, tables by columns."""
        return {} if self.latest is None else self.latest["report"]

    def rows(self, table: str) -> dict[str, dict[str, Any]]:
        """The rows of a table of the last report, as plain data: the reports' classes need torch."""
        found: Any = self.fields.get(table)
        return by_names(found) if is_table(found) else {}

    @property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names in each table of the last report."""
        return {table: tuple(self.fields[table]["name"]) for table in TABLES if is_table(self.fields.get(table))}

    def limit(self, kind: str) -> float:
        """The limit of a kind of alert, as its alerts have it, else the usual one."""
        return limit_of(kind, (alert for alerts in self.alerts.values() for alert in alerts))

    def series(self, table: str, stat: str) -> Series:
        """One statistic of a table (``sites``, ``modules``, ``parameters``, ``optimizers``): names by kept epochs."""
        kept = [columns.get(table, ((), {})) for columns in self.columns.values()]
        longest_first = sorted({names for names, _ in kept}, key=len, reverse=True)
        order = {name: row for row, name in enumerate(dict.fromkeys(name for names in longest_first for name in names))}
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
        known = series.values[series.names.index(name)] if name in series.names else [math.nan] * len(series.epochs)
        return [float(value) for value in known]


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
        sources: Site to where its module comes from, of sites that had an alert.
    """

    path: Path
    name: str
    unit: str = "epoch"
    fit: dict[str, Any] = field(default_factory=dict)
    monitors: list[MonitorRecord] = field(default_factory=list)
    timing: dict[int, dict[str, Any]] = field(default_factory=dict)
    end: dict[str, Any] | None = None
    damaged: int = 0
    sources: dict[str, Source] = field(default_factory=dict)

    @property
    def window(self) -> str:
        """What a report covers, in a word: an ``epoch``, or a ``window`` shorter than that."""
        return window_of(self.unit)

    def of(self, prefix: str) -> list[MonitorRecord]:
        """The monitors of a kind."""
        return [record for record in self.monitors if record.prefix == prefix and record.epochs]

    def loss(self, at: int) -> float:
        """The mean loss of an epoch, or of a window shorter than that; NaN where it is not known."""
        return number_of(self.timing.get(at, {}).get("loss"))

    def metric(self, name: str, at: int) -> float:
        """One of the user's metrics, or the ``loss``, as it was at a window's end; NaN where it is not known."""
        return self.loss(at) if name == "loss" else number_of(self.timing.get(at, {}).get("metrics", {}).get(name))

    @property
    def metrics(self) -> list[str]:
        """The names of the user's metrics."""
        return list(dict.fromkeys(name for event in self.timing.values() for name in event.get("metrics", {})))

    @property
    def epochs(self) -> list[int]:
        """All epochs with a report of any monitor."""
        return sorted({epoch for record in self.monitors for epoch in record.epochs})
