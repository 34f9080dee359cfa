"""A run as the tab shows it: plain data. What is written, and in which order, is the report's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from lightning_hooks.declare.brief import TABLES
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.declare.section import Section
from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.charts import strip
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.heat import DIVERGING, HEATS, VIRIDIS, heat_series
from lightning_hooks.run_report.recorded import MonitorRecord, Run, chosen, severities
from lightning_hooks.run_report.sections import SECTIONS, counts_of, numbers_of
from lightning_hooks.run_report.text import measured
from lightning_hooks.run_report.training import layers, loss_and_metrics, loss_by_epoch, rates_by_group, settings, thinned
from lightning_hooks.run_report.verdict import Course, Problem, courses, judge

MOST_ROWS, MOST_COLUMNS = 300, 300
"""Of a heat map: of more layers and windows every so many are drawn, and all layers with an alert."""
MOST_ALERTS = 300
MOST_NAMES = 9
"""Of sites of one problem."""
MOST_POINTS = 60
"""Of the loss in the list of runs."""
SHARE, MOST_SHARES = "share", 30


def entry(run: Run, updated: float) -> dict[str, Any]:
    """A run in the list of runs."""
    if not run.fit and not run.monitors:
        raise ValueError("it holds no run.")
    verdict = judge(run)
    losses = loss_by_epoch(run)[1]
    known = (event.get("seconds") for event in run.timing.values())
    durations = [float(seconds) for seconds in known if isinstance(seconds, int | float) and math.isfinite(seconds)]
    return {
        "status": verdict.status,
        "state": "running" if run.end is None else str(run.end.get("how", "ended")),
        "headline": verdict.headline,
        "model": str(run.fit.get("model", "")),
        "started": str(run.fit.get("started", "")),
        "updated": updated,
        "window": max(durations[-20:], default=0.0),
        "unit": run.unit,
        "last": max(run.epochs, default=None),
        "planned": run.fit.get("max_epochs") if run.unit == "epoch" else None,
        "loss": numbers(thinned(losses, MOST_POINTS)),
        "open": [_short(problem) for problem in verdict.problems if problem.lasts and problem.severity != "info"],
        "damaged": run.damaged,
    }


def _short(problem: Problem) -> dict[str, Any]:
    return {"id": problem.first.name, "severity": problem.severity, "title": problem.title, "where": problem.where}


def whole(run: Run, updated: float) -> dict[str, Any]:
    """A run's page, without its heat maps and curves."""
    verdict = judge(run)
    return {
        **entry(run, updated),
        "details": verdict.details,
        "problems": [_problem(run, problem) for problem in verdict.problems],
        "alerts": [_course(run, course) for course in in_order_of_cause(courses(run))[:MOST_ALERTS]],
        "windows": len(run.epochs),
        "training": {
            "epochs": loss_by_epoch(run)[0],
            "rates": {k: numbers(v) for k, v in rates_by_group(run).items()},
            "charts": {title: {name: numbers(v) for name, v in curves.items()} for title, curves in loss_and_metrics(run).items()},
        },
        "tables": list(_tables(run)),
        "maps": [
            {"monitor": place, "table": table, "stat": stat, "caption": caption}
            for place, table, stat, caption, _ in heat_series(run)
        ],
        "shares": [found for record in run.monitors for found in _shares(record)],
        **{each.title.lower(): [found for record in run.monitors for found in _rows(record, each)] for each in SECTIONS},
        "settings": [*settings(run), *((key, run.fit[key]) for key in ("lightning", "torch", "package") if key in run.fit)],
        "layers": [list(layer) for layer in layers(run)[:400]],
        "silent": [site for record in run.monitors for site in record.silent][:400],
    }


def in_order_of_cause(found: Iterable[Course]) -> list[Course]:
    """Root causes, those that last and the most severe first, each with its consequences behind it."""
    ordered = sorted(found, key=lambda course: (gravity(course.severity), not course.lasts, course.since))
    names = {course.alert.name for course in ordered}
    effects: dict[str, list[Course]] = {}
    for course in ordered:
        if course.alert.cause in names and course.alert.cause != course.alert.name:
            effects.setdefault(course.alert.cause, []).append(course)
    placed = {id(course) for group in effects.values() for course in group}
    roots = [course for course in ordered if id(course) not in placed]
    line = [course for root in roots for course in (root, *effects.pop(root.alert.name, ()))]
    return [*line, *(course for group in effects.values() for course in group)]


def _problem(run: Run, problem: Problem) -> dict[str, Any]:
    value, limit = measured(problem.first)
    return {
        **_short(problem),
        "kind": problem.kind,
        "sites": problem.sites[:MOST_NAMES],
        "others": max(len(problem.sites) - MOST_NAMES, 0),
        "when": problem.when,
        "lasts": problem.lasts,
        "seen": problem.seen,
        "advice": problem.advice,
        "evidence": problem.evidence,
        "consequences": problem.consequences[:MOST_NAMES],
        "value": value,
        "limit": limit,
        "curve": _curve_of(run, problem),
    }


def _curve_of(run: Run, problem: Problem) -> dict[str, Any] | None:
    """The curve that shows a problem: of the statistic with its kind's name, or with the alert's value, else of a heat map."""
    alert = problem.first
    at = alert.epoch if problem.unit == "epoch" else alert.step
    for place, record in enumerate(run.monitors):
        if not any(found.name == alert.name for found in record.alerts.get(at, ())):
            continue
        for table, (names, stats) in record.columns.get(at, {}).items():
            if alert.site in names:
                values = {stat: float(column[names.index(alert.site)]) for stat, column in stats.items()}
                usual = [stat for prefix, of, stat, _ in HEATS if (prefix, of) == (record.prefix, table)]
                equal = [stat for stat, value in values.items() if value and math.isclose(value, alert.value, rel_tol=1e-3)]
                order = [*(stat for stat in stats if stat.startswith(alert.kind)), *equal, *usual, *stats]
                stat = next((stat for stat in order if math.isfinite(values.get(stat, math.nan))), None)
                if stat is not None:
                    row = record.series(table, stat).names.index(alert.site)
                    return {"monitor": place, "table": table, "stat": stat, "row": row}
    return None


def _course(run: Run, course: Course) -> dict[str, Any]:
    value, limit = measured(course.alert)
    epochs = run.epochs
    return {
        "id": course.alert.name,
        "kind": course.alert.kind,
        "site": course.alert.site,
        "severity": course.severity,
        "cause": course.alert.cause,
        "message": course.alert.message,
        "since": course.since,
        "until": course.until,
        "lasts": course.lasts,
        "value": value,
        "limit": limit,
        "active": strip(course.epochs, epochs),
    }


def _tables(run: Run) -> Iterable[dict[str, Any]]:
    """What can be drawn: a monitor's table with its statistics."""
    for place, record in enumerate(run.monitors):
        columns = next(reversed(record.columns.values()), {})
        for table, (names, stats) in columns.items():
            if stats and names and table in TABLES:
                yield {
                    "monitor": place,
                    "prefix": record.prefix,
                    "modules": record.modules,
                    "table": table,
                    "stats": list(stats),
                    "names": len(names),
                }


def _shares(record: MonitorRecord) -> Iterable[dict[str, Any]]:
    """The largest shares of a whole that a monitor's last window gives by layer, such as those of what was learnt."""
    for table, (names, stats) in next(reversed(record.columns.values()), {}).items():
        if SHARE in stats:
            known = [(name, float(value)) for name, value in zip(names, stats[SHARE], strict=True) if math.isfinite(value)]
            rows = sorted(known, key=lambda row: -abs(row[1]))[:MOST_SHARES]
            yield {"title": f"{record.prefix}: share of each {TABLES.get(table, 'layer')}", "rows": rows}


def _rows(record: MonitorRecord, section: Section) -> Iterable[dict[str, Any]]:
    """The rows of a section that a capability declares."""
    for name in record.names.get(section.table, ()) if record.prefix == section.prefix else ():
        found = numbers_of(record, section, name)
        head = {"name": name, "epochs": list(record.columns), "unit": record.unit, "counts": counts_of(found)}
        yield head | {stat: numbers(values) for stat, values in found.items() if not stat.endswith("steps")}


def heat(run: Run, monitor: int, table: str, stat: str) -> dict[str, Any]:
    """A statistic of all layers over the windows, thinned to what a screen shows.

    Raises:
        LookupError: If there is no such monitor or statistic.
    """
    record = run.monitors[monitor]
    series = record.series(table, stat)
    if not series.names or not series.epochs:
        raise LookupError("no such statistic")
    kept = set(chosen(series.names, severities(record), MOST_ROWS))
    rows = [row for row, name in enumerate(series.names) if name in kept]
    every = max(1, -(-len(series.epochs) // MOST_COLUMNS))
    columns = sorted({0, *range(len(series.epochs) - 1, 0, -every)})  # with the first and the last
    place = {series.names[row]: index for index, row in enumerate(rows)}
    epochs = [series.epochs[column] for column in columns]
    return {
        "stat": stat,
        "share": stat in FRACTIONS,
        "colors": {"sequential": VIRIDIS, "diverging": DIVERGING},
        "names": [series.names[row] for row in rows],
        "rows": rows,
        "epochs": epochs,
        "unit": series.unit,
        "of": [len(series.names), len(series.epochs)],
        "values": [numbers(line) for line in series.values[np.ix_(rows, columns)].tolist()],
        "marks": [
            [place[course.alert.site], int(np.abs(np.subtract(epochs, course.since)).argmin()), course.severity, course.alert.name]
            for course in courses(run)
            if course.alert.site in place and course.prefix == record.prefix and course.severity != "info"
        ],
    }


def curve(run: Run, monitor: int, table: str, stat: str, row: int) -> dict[str, Any]:
    """A statistic of one layer over the windows, with its alerts.

    Raises:
        LookupError: If there is no such monitor, statistic or layer.
    """
    record = run.monitors[monitor]
    series = record.series(table, stat)
    name = series.names[row]
    found = [course for course in courses(run) if course.alert.site == name and course.prefix == record.prefix]
    return {
        "name": name,
        "stat": stat,
        "share": stat in FRACTIONS,
        "unit": series.unit,
        "epochs": list(series.epochs),
        "values": numbers(series.values[row].tolist()),
        "marks": [[course.since, course.until, course.severity, course.alert.name] for course in found],
    }


def names(run: Run, monitor: int, table: str, stat: str) -> list[str]:
    """The layers that have a statistic; the place of each is its row.

    Raises:
        LookupError: If there is no such monitor.
    """
    return list(run.monitors[monitor].series(table, stat).names)


def both(a: Run, b: Run) -> dict[str, Any]:
    """Two runs compared.

    Raises:
        ValueError: If they have no window in common.
    """
    found = compare(a, b)
    return {
        "at": found.epoch,
        "unit": a.unit,
        "groups": [{"title": group.title, "cells": group.cells, "more": group.more} for group in found.groups],
        "alerts": [
            [
                title,
                [{"id": course.alert.name, "severity": course.severity, "since": course.since} for course in alerts[:MOST_NAMES]],
            ]
            for title, alerts in found.alerts
        ],
        "only": [found.only_a[:MOST_NAMES], found.only_b[:MOST_NAMES]],
        "settings": [[key, str(a), str(b)] for key, a, b in found.settings if not isinstance(a or b, dict)],
    }


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers in four digits; None for those that are not finite."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
