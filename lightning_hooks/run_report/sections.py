"""The sections that capabilities declare, of a run and of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lightning_hooks.declare.section import Panel, Section
from lightning_hooks.diagnostics import modules
from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.charts import Chart, Line, chart
from lightning_hooks.run_report.recorded import MonitorRecord, Run
from lightning_hooks.run_report.text import number, percent

SECTIONS: tuple[Section, ...] = tuple(file.SECTION for file in modules(".section"))
"""What capabilities declare, each in a file of that name."""
COLORS = ("var(--blue)", "var(--amber)")
ONLY = ("var(--sky)",)
"""The colour of a curve that is alone with its limit."""


def numbers_of(record: MonitorRecord, section: Section, name: str) -> dict[str, list[float]]:
    """The statistics of one row, by kept window."""
    return {stat: record.values(section.table, stat, name) for stat in section.stats}


def counts_of(numbers: Mapping[str, Sequence[float]]) -> dict[str, int]:
    """The counts of steps among them, over all windows."""
    return {stat: int(np.nansum(values)) for stat, values in numbers.items() if stat.endswith("steps")}


def parts_of(run: Run, section: Section, most: int) -> list[dict[str, Any]]:
    """The first rows of a section, as the templates show them: facts, curves, a note, and the cells of the table in Markdown."""
    parts = []
    for record in run.of(section.prefix):
        for name, stats in list(getattr(record.last, section.table, {}).items())[:most]:
            numbers = numbers_of(record, section, name)
            facts, note = section.facts(counts_of(numbers), stats, run.window)
            parts.append(
                {
                    "name": name,
                    "facts": [(text, number(value) if isinstance(value, int) else percent(value)) for text, value in facts],
                    "charts": [_chart(record, panel, numbers, stats) for panel in section.panels],
                    "note": note,
                    "cells": [
                        (percent if stat in FRACTIONS else number)(getattr(stats, stat)) for stat in section.columns.values()
                    ],
                    "drawn": len(record.columns),
                    "windows": len(record.alerts),
                }
            )
    return parts


def _chart(record: MonitorRecord, panel: Panel, numbers: Mapping[str, Sequence[float]], stats: Any) -> Chart:
    epochs, share = list(record.columns), any(stat in FRACTIONS for stat, _ in panel.curves.values())
    colors = COLORS if len(panel.curves) > 1 else ONLY
    lines = [
        Line(text + " (mean, to the largest)" * bool(top), numbers[stat], color, top=numbers.get(top))
        for (text, (stat, top)), color in zip(panel.curves.items(), colors, strict=False)
    ]
    limit = getattr(stats, panel.limit) if panel.limit else None
    limits = {f"configured limit {number(limit)}": limit} if limit else {}
    if panel.rule:
        limits[f"limit of {panel.rule}"] = record.limit(panel.rule)
    lines += [Line(text, [at] * len(epochs), "var(--soft)", dashed=True) for text, at in limits.items()]
    return chart(lines, epochs, 90 if share else 170, "share" if share else panel.kind, record.unit)


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
