"""The numbers of several reports: layers by epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import TABLES
from lightning_hooks.declare.window import Report

FRACTIONS = ("zero_fraction", "nonfinite_fraction", "dead_fraction", "saturated_fraction", "rate", "coefficient")
SIGNED = ("mean", "min", "max", "value")
NOT_NUMBERS = {"top_parameters", "limit", "channels", "load"}  # fields of statistics that are no numbers of their own


@dataclass(frozen=True, slots=True)
class Series:
    """One statistic of several reports."""

    names: tuple[str, ...]  # layers, parameters or optimizers, in the model's order, of which any report has the statistic
    epochs: tuple[int, ...]  # one per report: its epoch, or its step where windows are shorter than epochs
    values: np.ndarray  # shape (len(names), len(epochs)), float64; NaN where nothing was measured
    noun: str  # what the names name: module, parameter or optimizer
    unit: str = "epoch"  # what numbers the reports: epoch or step


def as_reports(reports: Any, kind: type[Report] = Report, source: str = "") -> list[Any]:
    """One report, or several of a kind that the monitor ``source`` has, as a list in the order of epochs.

    Raises:
        TypeError: If something else came, or reports of several kinds.
        ValueError: If none came.
    """
    found = [reports] if isinstance(reports, Report) else list(reports)
    if not found:
        raise ValueError("a picture needs at least one report; got none. A monitor has its first after a window.")
    names = sorted({type(report).__name__ for report in found})
    if len(names) > 1 or not isinstance(found[0], Report):
        raise TypeError(
            "expected one report or several of one kind (FeatureReport, GradientFlowReport, ClipReport, …); "
            f"got {', '.join(names)}."
        )
    if not isinstance(found[0], kind):
        raise TypeError(f"expected {kind.__name__}s, such as {source}'s history; got {type(found[0]).__name__}.")
    return sorted(found, key=lambda report: (report.epoch, report.at))


def check_report(report: object, kind: type[Report], source: str) -> None:
    """Raise TypeError if ``report`` is not of the kind that the monitor ``source`` has."""
    if not isinstance(report, kind):
        raise TypeError(f"expected one {kind.__name__}, such as {source}'s report; got {type(report).__name__}.")


def tables(report: Report) -> dict[str, Mapping[str, Any]]:
    """The tables of a report: what is named, to the statistics by name."""
    return {noun: getattr(report, table) for table, noun in TABLES.items() if hasattr(report, table)}


def series(reports: Sequence[Report], stat: str, noun: str | None = None) -> Series:
    """Put one statistic, such as ``rms``, of reports of one kind into an array.

    Of ``module`` and ``parameter`` it is the statistic of ``noun``, or of the first that has it.

    Raises:
        ValueError: If no report has the statistic.
    """
    known: dict[str, None] = {}
    for what in dict.fromkeys(key for report in reports for key in tables(report)):
        columns = [tables(report)[what] for report in reports]
        some = next((stats for column in columns for stats in column.values()), None)
        if some is None or noun not in (None, what):
            continue
        known |= dict.fromkeys(some.__dataclass_fields__)
        if not hasattr(some, stat):
            continue
        order = dict.fromkeys(name for column in sorted(columns, key=len, reverse=True) for name in column)
        rows = {name: [getattr(column.get(name), stat, None) for column in columns] for name in order}
        applies = {name: row for name, row in rows.items() if any(value is not None for value in row)}
        values = np.array(list(applies.values()), dtype=float).reshape(-1, len(columns))  # None is NaN
        return Series(tuple(applies), tuple(report.at for report in reports), values, what, reports[-1].unit)
    names = ", ".join(sorted(known.keys() - NOT_NUMBERS)) or "none: the reports are empty"
    raise ValueError(f"stat must be one of {names}; got {stat!r}.")


def beginnings(reports: Sequence[Report]) -> list[tuple[int, Alert]]:
    """When alerts began: (index of the report, alert), for alerts that the report before did not have."""
    found = []
    before: set[tuple[str, str]] = set()
    for index, report in enumerate(reports):
        found += [(index, alert) for alert in report.alerts if (alert.kind, alert.site) not in before]
        before = {(alert.kind, alert.site) for alert in report.alerts}
    return found


def window_of(unit: str) -> str:
    """What a report covers, in a word, by what numbers it: an ``epoch``, or a ``window`` shorter than that."""
    return "epoch" if unit == "epoch" else "window"


def relative_to_first(values: np.ndarray) -> np.ndarray:
    """The sizes in each row over the first of the row that is finite and not zero; NaN where there is none."""
    sizes = np.where(np.isfinite(values), np.abs(values), np.nan)
    known = np.isfinite(sizes) & (sizes > 0)
    first = np.where(known.any(axis=1), sizes[np.arange(len(sizes)), known.argmax(axis=1)], np.nan)
    return sizes / first[:, None]
