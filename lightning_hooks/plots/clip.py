"""Clipping over the epochs: norms before and after, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_hooks.diagnostics.reports import ClipReport
from lightning_hooks.plots.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Axes,
    Figure,
    alert_handles,
    decades,
    heading,
    legend,
    mark,
    name_epochs,
    nothing,
    sheet,
    style,
)
from lightning_hooks.plots.series import as_reports, beginnings, kinds_by_severity

LINES = (
    ("before clipping", BLUE, "o", "norm_before", "norm_before_max"),
    ("after clipping", ORANGE, "s", "norm_after", "norm_after_max"),
)
RATES = (("clipped", SKY, ""), ("skipped", PURPLE, "///"), ("non-finite", VERMILLION, "xxx"))


@style()
def clip_history(reports: ClipReport | Sequence[ClipReport]) -> Figure:
    """Draw the total gradient norm before and after clipping over the epochs, and the share of steps that were clipped.

    Lines are means over an epoch's steps, bands reach to its largest step. Each optimizer has a column of its own.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not ClipReports.
        ValueError: If there is none.
    """
    ordered = as_reports(reports, ClipReport, "GradientClipMonitor")
    optimizers = list(dict.fromkeys(name for report in ordered for name in report.optimizers))
    title = "Gradient clipping"
    if not optimizers:
        return nothing(title, "There was no optimizer.")
    wide = float(np.clip(3.4 + 0.12 * len(ordered), 5.6, 11.0))
    figure = sheet(wide if len(optimizers) == 1 else min(wide, 5.0) * len(optimizers), 5.6)
    grid = figure.subplots(2, len(optimizers), sharex="col", sharey="row", height_ratios=[3, 1.3], squeeze=False)
    handles: dict[str, Any] = {}
    for column, name in enumerate(optimizers):
        rows = [report.optimizers.get(name) for report in ordered]
        norms, rates = grid[0, column], grid[1, column]
        heading(norms, f"{title}, {name}" if len(optimizers) == 1 else name, _summary(rows))
        _norms(norms, rows, handles)
        _rates(rates, rows, handles)
        name_epochs(rates, [report.at for report in ordered], unit=ordered[-1].unit)
        rates.set_xlim(-0.6, len(ordered) - 0.4)
        _began(norms, rows, name, ordered)
    _norm_axis(grid[0, 0], ordered)
    grid[0, 0].set_ylabel("total gradient norm (L2)")
    grid[1, 0].set_ylabel("share of steps")
    shown = (alert for report in ordered for alert in report.alerts if alert.site in optimizers)
    legend(figure, [*handles.values(), *alert_handles(kinds_by_severity(shown))])
    return figure


def _summary(rows: Sequence[Any]) -> str:
    observed = [row for row in rows if row is not None]
    steps = sum(row.steps for row in observed)
    if not steps:
        return "no step was taken"
    return f"{sum(row.clipped_steps for row in observed) / steps:.0%} of {steps} steps clipped"


def _numbers(rows: Sequence[Any], stat: str) -> np.ndarray:
    return np.array([np.nan if row is None else getattr(row, stat) for row in rows], dtype=float)


def _norm_axis(axes: Axes, reports: Sequence[ClipReport]) -> None:
    stats = [stats for report in reports for stats in report.optimizers.values()]
    found = [getattr(entry, stat) for entry in stats for line in LINES for stat in line[3:]]
    found += [entry.limit for entry in stats if entry.limit]
    values = np.array(found, dtype=float)
    decades(axes, values[np.isfinite(values) & (values > 0)])


def _norms(axes: Axes, rows: Sequence[Any], handles: dict[str, Any]) -> None:
    x = np.arange(len(rows))
    for text, color, marker, mean, largest in LINES:
        y, top = _numbers(rows, mean), _numbers(rows, largest)
        y[~(y > 0)] = np.nan
        axes.fill_between(x, y, top, color=color, alpha=0.18, lw=0)
        if len(rows) == 1:
            axes.vlines(x, y, top, color=color, alpha=0.4, lw=6)
        (line,) = axes.plot(
            x, y, color=color, marker=marker, ms=4 if len(rows) <= 60 else 1.5, label=f"{text}: mean, to the largest"
        )
        handles.setdefault(text, line)
    limits = _numbers([None if row is None or row.limit is None else row for row in rows], "limit")
    if np.isfinite(limits).any():
        limit = float(limits[np.isfinite(limits)][-1])
        handles.setdefault("limit", axes.axhline(limit, color=INK, lw=1.0, ls=(0, (4, 3)), label=f"configured limit {limit:.3g}"))
    lost = ~np.isfinite(_numbers(rows, "norm_before"))
    if lost.any():
        (cross,) = axes.plot(
            x[lost], np.zeros(int(lost.sum())), "x", color=GREY, ms=6, transform=axes.get_xaxis_transform(), clip_on=False,
            label="no finite norm", ls="",
        )  # fmt: skip
        handles.setdefault("lost", cross)
    axes.grid(axis="y")


def _rates(axes: Axes, rows: Sequence[Any], handles: dict[str, Any]) -> None:
    x = np.arange(len(rows))
    steps, skipped = _numbers(rows, "steps"), _numbers(rows, "skipped_steps")
    attempted = np.maximum(np.nan_to_num(steps + skipped), 1)
    bottom = np.zeros(len(rows))
    counts = (_numbers(rows, "clipped_steps"), skipped, _numbers(rows, "nonfinite_steps"))
    for (text, color, hatch), count in zip(RATES, counts, strict=True):
        share = np.nan_to_num(count) / attempted
        bars = axes.bar(x, share, bottom=bottom, color=color, hatch=hatch, ec="white", width=0.85, lw=0.3, label=f"{text} steps")
        bottom += share
        if share.any():
            handles.setdefault(text, bars)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.grid(axis="y")


def _began(axes: Axes, rows: Sequence[Any], name: str, reports: Sequence[ClipReport]) -> None:
    for index, alert in beginnings(reports).get(name, []):
        value = np.nan if rows[index] is None else rows[index].norm_before
        finite = np.isfinite(value) and value > 0
        transform = axes.transData if finite else axes.get_xaxis_transform()
        mark(axes, alert.severity, [index], [value if finite else 0.06], edge=0.7, transform=transform)
