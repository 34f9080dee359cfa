"""A run as the page shows it: plain JSON types. It needs no torch."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_hooks.declare.kinds import capital, known_kind
from lightning_hooks.judge.weights import record_of
from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.blocks import measured, numbers
from lightning_hooks.run_report.recorded import MOST_DRAWN, STATISTICS, Run, chosen, number_of, severities
from lightning_hooks.run_report.sections import sections_of
from lightning_hooks.run_report.training import loss_by_epoch, thinned
from lightning_hooks.run_report.verdict import Course, Problem, Verdict, courses, judge

MOST_NAMES = 9  # of sites of one problem
AGAIN = "To make it again: lightning-hooks report RUN_DIR; to compare two runs: lightning-hooks compare RUN_A RUN_B."
MOST_POINTS = 60  # of the loss in the list of runs
Page = dict[str, Any]


def entry(run: Run, updated: float) -> Page:
    """A run in the list of runs."""
    if not run.fit and not run.monitors:
        raise ValueError("it holds no run.")
    return _entry(run, judge(run), updated)


def _entry(run: Run, verdict: Verdict, updated: float) -> Page:
    durations = [took for event in run.timing.values() if math.isfinite(took := number_of(event.get("seconds")))]
    return {
        **_verdict(verdict),
        "state": "running" if run.end is None else str(run.end.get("how", "ended")),
        "model": str(run.fit.get("model", "")),
        "updated": updated,
        "window": max(durations[-20:], default=0.0),
        "unit": run.unit,
        "last": max(run.epochs, default=None),
        "planned": run.fit.get("max_epochs") if run.unit == "epoch" else None,
        "loss": numbers(thinned(loss_by_epoch(run)[1], MOST_POINTS)),
        "open": [_short(problem) for problem in verdict.problems if problem.lasts and problem.severity != "info"],
        "damaged": run.damaged,
    }


def whole(run: Run, updated: float, most: int = MOST_DRAWN) -> Page:
    """A run's page; the numbers of heat maps and of single curves are asked for one by one."""
    verdict = judge(run)
    started = f" Training started {run.fit['started']}." if "started" in run.fit else ""
    return {
        **(_entry(run, verdict, updated) if run.fit or run.monitors else {}),
        "title": f"Health report: {run.fit.get('model', 'training')} · {'this directory' if run.name == '.' else run.name}",
        "verdicts": [{**_verdict(verdict), "details": list(verdict.details)}],
        "problems": [_problem(run, problem) for problem in verdict.problems],
        "sections": sections_of(run, most),
        "footer": [f"Made by lightning_hooks.{started}", *[AGAIN] * bool(run.fit)],
    }


def _verdict(verdict: Verdict) -> Page:
    return {"status": verdict.status, "headline": verdict.headline}


def _short(problem: Problem) -> Page:
    return {"id": problem.first.name, "severity": problem.severity, "title": problem.title, "where": problem.where}


def _problem(run: Run, problem: Problem) -> Page:
    first = problem.first
    best, others = first.causes[:1], first.causes[1:]  # the most likely cause, and the others that it may have
    value, limit = measured(first)
    record = record_of(problem.kind)
    return {
        **_short(problem),
        **{name: getattr(problem, name) for name in ("when", "lasts", "advice")},
        "headline": capital(first.headline),
        "seen_as": capital(f"{first.measured} {first.of_samples}".strip()),
        "rules": f"lightning-hooks explain {problem.kind}" if known_kind(problem.kind) else "",
        "record": f"Its record: {record}." if record else "",
        "evidence": [text for cause in best for text in cause.evidence_for],
        "against": [
            *(text for cause in best for text in cause.evidence_against),
            *(f"It may be another cause: {other.statement}" for other in others),
        ],
        "probability": first.probability,
        "sites": problem.sites[:MOST_NAMES],
        "others": max(len(problem.sites) - MOST_NAMES, 0),
        "consequences": problem.consequences[:MOST_NAMES],
        "value": value,
        "limit": limit,
        "curve": _curve_of(run, problem),
    }


def _curve_of(run: Run, problem: Problem) -> Page | None:
    """The curve that shows a problem: of the statistic with its kind's name, or with the alert's value, else of a heat map."""
    alert = problem.first
    at = alert.epoch if problem.unit == "epoch" else alert.step
    for place, record in enumerate(run.monitors):
        if not any(found.name == alert.name for found in record.alerts.get(at, ())):
            continue
        for of, (names, stats) in record.columns.get(at, {}).items():
            if alert.site in names:
                values = {stat: float(column[names.index(alert.site)]) for stat, column in stats.items()}
                usual = [each.stat for each in STATISTICS if (each.prefix, each.table) == (record.prefix, of)]
                equal = [stat for stat, value in values.items() if value and math.isclose(value, alert.value, rel_tol=1e-3)]
                order = [*(stat for stat in stats if stat.startswith(alert.kind)), *equal, *usual, *stats]
                stat = next((stat for stat in order if math.isfinite(values.get(stat, math.nan))), None)
                if stat is not None:
                    return {"monitor": place, "table": of, "stat": stat, "row": record.series(of, stat).names.index(alert.site)}
    return None


def heat(
    run: Run,
    monitor: int,
    table: str,
    stat: str,
    row: int | None = None,
    most: int = MOST_DRAWN,
    found: Sequence[Course] | None = None,
) -> Page:
    """A statistic of all layers over the windows, thinned to what a screen shows, or of the layer in one row, with its alerts.

    ``found`` are the :func:`courses` of the run's alerts, where they are known.

    Raises:
        LookupError: If there is no such monitor, statistic or layer.
    """
    record = run.monitors[monitor]
    series = record.series(table, stat)
    if not series.names or not series.epochs:
        raise LookupError("no such statistic")
    kept = {series.names[row]} if row is not None else set(chosen(series.names, severities(record), most))
    at = [number for number, name in enumerate(series.names) if name in kept]
    every = max(1, -(-len(series.epochs) // most))
    columns = sorted({0, *range(len(series.epochs) - 1, 0, -every)})  # with the first and the last
    place = {series.names[number]: index for index, number in enumerate(at)}
    return {
        "stat": stat,
        "share": stat in FRACTIONS,
        "names": [series.names[number] for number in at],
        "rows": at,
        "epochs": [series.epochs[column] for column in columns],
        "unit": series.unit,
        "of": [len(series.names), len(series.epochs)],
        "values": packed(series.values[np.ix_(at, columns)]),
        "marks": [
            [place[course.alert.site], course.since, course.until, course.severity, course.alert.name]
            for course in (courses(run) if found is None else found)
            if course.alert.site in place and course.prefix == record.prefix and (course.serious or row is not None)
        ],
    }


def packed(values: np.ndarray) -> str:
    """Numbers row by row in Base64: the three upper bytes of each little-endian float32, which are four digits; NaN for none."""
    bits = np.where(np.isfinite(values), values, np.nan).astype("<f4").view("<u4") + np.uint32(0x80)
    return base64.b64encode(np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()).decode()
