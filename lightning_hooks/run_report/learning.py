"""The part of a health report about learning: which layers the fall of the loss comes from, and how long steps are."""

from __future__ import annotations

import numpy as np

from lightning_hooks.run_report.charts import Chart, Line, chart
from lightning_hooks.run_report.recorded import MonitorRecord
from lightning_hooks.run_report.run import Run

COLORS = ("var(--blue)", "var(--amber)", "var(--green)", "var(--red)", "var(--sky)")
LONG, BEST, SHORT = 0.1, 0.5, 1.0
"""Step ratios: below the first a step is too long, at the second it has the best length, at the third it is short."""
BOUNDS = (-1.0, 1.5)
"""Ratios beyond are drawn at these."""


def learning_charts(run: Run) -> list[tuple[str, Chart]]:
    """A title and curves of the shares by layer, and of the step ratio; what was not measured is left out."""
    found = []
    for record in run.of("gradient_flow"):
        shares, ratios = _shares(record), record.values("steps", "step_ratio", "model")
        epochs = list(record.columns)
        if shares:
            found.append(("Which layers the loss falls by", chart(shares, epochs, kind="linear", unit=record.unit)))
        if np.isfinite(ratios).any():
            clipped = [float(ratio) for ratio in np.clip(ratios, *BOUNDS)]
            lines = [
                Line("harmful below", [0.0] * len(epochs), "var(--red)", dashed=True),
                Line("too long below", [LONG] * len(epochs), "var(--amber)", dashed=True),
                Line("best length", [BEST] * len(epochs), "var(--green)", dashed=True),
                Line("short", [SHORT] * len(epochs), "var(--soft)", dashed=True),
                Line("gain of a step over its predicted gain", clipped, "var(--blue)"),
            ]
            found.append(("Step ratio", chart(lines, epochs, 130, kind="linear", unit=record.unit)))
    return found


def _shares(record: MonitorRecord) -> list[Line]:
    """The layers with the largest shares: modules that hold no others."""
    series = record.series("learning", "share")
    inner = {name.rpartition(".")[0] for name in series.names}
    rows = [(name, values) for name, values in zip(series.names, series.values, strict=True) if name not in inner]
    known = [(name, values) for name, values in rows if np.isfinite(values).any()]
    largest = sorted(known, key=lambda row: -float(np.nanmean(np.abs(row[1]))))[: len(COLORS)]
    return [Line(f"{name}: share", values.tolist(), color) for (name, values), color in zip(largest, COLORS, strict=False)]
