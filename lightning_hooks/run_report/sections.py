"""The sections that capabilities declare, of a run and of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lightning_hooks.declare.section import Panel, Section
from lightning_hooks.diagnostics.clipping_events import section as of_steps
from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.charts import Chart, Line, chart
from lightning_hooks.run_report.recorded import MonitorRecord, Run
from lightning_hooks.run_report.text import number, percent

SECTIONS: tuple[Section, ...] = (of_steps.SECTION,)
COLORS = ("var(--blue)", "var(--amber)")
ONLY = ("var(--sky)",)
"""The colour of a curve that is alone with its limit."""


class Part(NamedTuple):
    """One row of a table in a section."""

    name: str  # the row's
    facts: list[tuple[str, str]]  # what is written above the curves
    charts: list[Chart]
    note: str  # below them; empty for none
    cells: list[str]  # of the table in Markdown
    kept: int  # how many windows are drawn
    windows: int  # how many there are


def numbers_of(record: MonitorRecord, section: Section, name: str) -> dict[str, list[float]]:
    """The statistics of one row, by kept window."""
    return {stat: record.values(section.table, stat, name) for stat in section.stats}


def counts_of(numbers: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """The counts of steps among them, over all windows."""
    return {stat: int(np.nansum(values)) for stat, values in numbers.items() if stat.endswith("steps")}


def parts_of(run: Run, section: Section) -> list[Part]:
    """The rows of a section."""
    return [
        _part(record, section, name, stats, run.window)
        for record in run.of(section.prefix)
        for name, stats in getattr(record.last, section.table, {}).items()
    ]


def _part(record: MonitorRecord, section: Section, name: str, stats: Any, window: str) -> Part:
    numbers = numbers_of(record, section, name)
    facts = [(text, _shown(value)) for text, value in section.facts(counts_of(numbers), stats, window)]
    charts = [_chart(record, panel, numbers, stats) for panel in section.panels]
    values = {stat: getattr(stats, stat) for stat in section.columns.values()}
    cells = [percent(value) if stat in FRACTIONS else number(value) for stat, value in values.items()]
    return Part(name, facts, charts, section.note(stats, window), cells, len(record.columns), len(record.alerts))


def _shown(value: float) -> str:
    return str(value) if isinstance(value, int) else percent(value)


def _chart(record: MonitorRecord, panel: Panel, numbers: Mapping[str, Sequence[float]], stats: Any) -> Chart:
    epochs = list(record.columns)
    colors = COLORS if len(panel.curves) > 1 else ONLY
    lines = [
        Line(text + " (mean, to the largest)" * bool(top), numbers[stat], color, top=numbers.get(top))
        for (text, (stat, top)), color in zip(panel.curves.items(), colors, strict=False)
    ]
    limit = getattr(stats, panel.limit) if panel.limit else None
    limits = {f"configured limit {number(limit)}": limit} if limit else {}
    if panel.rule:
        from lightning_hooks.alerts.defaults import limit_of  # with torch, which the numbers do without

        alerts = (alert for alerts in record.alerts.values() for alert in alerts)
        limits[f"limit of {panel.rule}"] = limit_of(panel.rule, alerts)
    lines += [Line(text, [at] * len(epochs), "var(--soft)", dashed=True) for text, at in limits.items()]
    return chart(lines, epochs, panel.height, kind=panel.kind, unit=record.unit)


def compared(a: Run, b: Run, section: Section, name: str) -> Chart:
    """The first curve of a section's row in two runs."""
    text, (stat, _) = next(iter(section.panels[0].curves.items()))
    known = [
        {
            epoch: value
            for record in run.of(section.prefix)
            if name in record.series(section.table, stat).names
            for epoch, value in zip(record.columns, record.values(section.table, stat, name), strict=True)
        }
        for run in (a, b)
    ]
    epochs = sorted({epoch for values in known for epoch in values})
    lines = [
        Line(f"{letter}: {text}", [values.get(epoch, math.nan) for epoch in epochs], color)
        for letter, values, color in zip("AB", known, COLORS, strict=True)
    ]
    return chart(lines, epochs, unit=a.unit)
