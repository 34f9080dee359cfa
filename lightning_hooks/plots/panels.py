"""Windows from left to right, in panels: curves with the shares of what happened below them, and stacked bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.declare.window import Report
from lightning_hooks.plots.canvas import Axes, Figure
from lightning_hooks.plots.series import beginnings

LOOKS = ((canvas.BLUE, "o"), (canvas.ORANGE, "s"))
"""The colour and the marker of the curves of a panel, in order."""
FILLS = ((canvas.SKY, ""), (canvas.PURPLE, "///"), (canvas.VERMILLION, "xxx"))
"""The colour and the hatching of the shares below them."""
MOST_PANELS = 12
MOST_COLUMNS = 60
"""Windows that get a bar; of more, evenly spaced ones."""


class Curves(NamedTuple):
    """What one site did, window by window."""

    site: str
    line: str  # what is written below it
    curves: dict[str, tuple[np.ndarray, np.ndarray]]  # what, to its mean and largest value in each window; NaN where there is none
    limit: np.ndarray  # a threshold, in each window
    shares: dict[str, np.ndarray]  # what happened, to its share of all that did in each window


@canvas.style()
def curve_figure(
    title: str, reports: Sequence[Report], panels: Sequence[Curves], *, axis: str, unmeasured: str, whole: str, missing: str
) -> Figure:
    """Draw a column for each site: its curves on a log axis, with alerts, and below them shares of ``whole``.

    ``unmeasured`` is what the first curve lacks where it is not finite, ``missing`` what is written where there is no site.
    """
    if not panels:
        return canvas.nothing(title, missing)
    wide = canvas.within(3.4 + 0.12 * len(reports), 5.6, 11.0)
    figure = canvas.sheet(wide if len(panels) == 1 else min(wide, 5.0) * len(panels), 5.6)
    grid = figure.subplots(2, len(panels), sharex="col", sharey="row", height_ratios=[3, 1.3], squeeze=False)
    for panel, above, below in zip(panels, *grid, strict=True):
        canvas.heading(above, f"{title}, {panel.site}" if len(panels) == 1 else panel.site, panel.line)
        heights = next(iter(panel.curves.values()))[0]
        _curves(above, panel)
        unknown = np.flatnonzero(~np.isfinite(heights))
        if unknown.size:
            look: dict[str, Any] = {"ls": "", "transform": above.get_xaxis_transform(), "clip_on": False}
            above.plot(unknown, np.zeros(unknown.size), "x", color=canvas.GREY, ms=6, label=unmeasured, **look)
        _shares(below, panel.shares, whole)
        canvas.name_epochs(below, [report.at for report in reports], unit=reports[-1].unit)
        below.set_xlim(-0.6, len(reports) - 0.4)
        began = [(index, alert) for index, alert in beginnings(reports) if alert.site == panel.site]
        points = [(at, heights[at] if canvas.positive(heights[at]) else np.nan, alert.severity) for at, alert in began]
        canvas.mark_alerts(above, points, edge=0.7)
    drawn = [values for panel in panels for values in (panel.limit, *(of for both in panel.curves.values() for of in both))]
    canvas.decades(grid[0, 0], np.concatenate(drawn))
    grid[0, 0].set_ylabel(axis)
    grid[1, 0].set_ylabel(f"share of {whole}")
    handles: dict[str, Any] = {}
    for axes in grid.flat:
        handles = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True)) | handles
    canvas.legend(figure, [*handles.values(), *_alert_handles(reports, panels)])
    return figure


def _curves(axes: Axes, panel: Curves) -> None:
    x = np.arange(len(panel.limit))
    for (text, (mean, top)), (color, marker) in zip(panel.curves.items(), LOOKS, strict=False):
        y = np.where(mean > 0, mean, np.nan)
        axes.fill_between(x, y, top, color=color, alpha=0.18, lw=0)
        if len(x) == 1:
            axes.vlines(x, y, top, color=color, alpha=0.4, lw=6)
        axes.plot(x, y, color=color, marker=marker, ms=4 if len(x) <= 60 else 1.5, label=f"{text}: mean, to the largest")
    if np.isfinite(panel.limit).any():
        limit = float(panel.limit[np.isfinite(panel.limit)][-1])
        axes.axhline(limit, color=canvas.INK, lw=1.0, ls=(0, (4, 3)), label=f"configured limit {limit:.3g}")
    axes.grid(axis="y")


def _shares(axes: Axes, shares: dict[str, np.ndarray], whole: str) -> None:
    bottom: Any = 0.0
    for (text, share), (color, hatch) in zip(shares.items(), FILLS, strict=False):
        label = f"{text} {whole}" if share.any() else ""
        axes.bar(np.arange(len(share)), share, 0.85, bottom, label=label, color=color, hatch=hatch, ec="white", lw=0.3)
        bottom = bottom + share
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.grid(axis="y")


class Stack(NamedTuple):
    """How one site divided something, window by window."""

    site: str
    line: str  # what is written below it
    shares: np.ndarray  # the share of each part in each window, shape (windows, parts)
    counts: Sequence[int]  # a number above the bar of each window; 0 for none
    what: str  # what the numbers count


@canvas.style()
def stack_figure(title: str, reports: Sequence[Report], panels: Sequence[Stack], *, axis: str, missing: str) -> Figure:
    """Draw a panel for each site with a stacked bar for each window; a figure that says ``missing`` where there is no site.

    Parts are stacked in their order, in shades that come back every eight.
    """
    if not panels:
        return canvas.nothing(title, missing)
    shown = slice(None, None, math.ceil(len(reports) / MOST_COLUMNS))
    columns = min(len(panels), 3)
    rows = math.ceil(len(panels) / columns)
    wide = canvas.within(2.6 + 0.1 * len(reports[shown]), 3.4, 7.0)
    figure = canvas.sheet(max(wide * columns, 5.6), 0.6 + 2.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for panel, axes in zip(panels, grid.flat, strict=False):
        _stack(axes, panel._replace(shares=panel.shares[shown], counts=panel.counts[shown]))
        canvas.name_epochs(axes, [report.at for report in reports[shown]], unit=reports[-1].unit)
    for axes in grid[:, 0]:
        axes.set_ylabel(axis)
    canvas.legend(figure, _alert_handles(reports, panels))
    return figure


def _alert_handles(reports: Sequence[Report], panels: Sequence[Curves | Stack]) -> list[Any]:
    sites = {panel.site for panel in panels}
    return canvas.alert_handles(alert for report in reports for alert in report.alerts if alert.site in sites)


def _stack(axes: Axes, panel: Stack) -> None:
    from matplotlib import colormaps

    windows, parts = panel.shares.shape
    shades, bottom = colormaps["viridis"](np.linspace(0.1, 0.95, 8)), np.zeros(windows)
    for part, share in enumerate(panel.shares.T):
        axes.bar(range(windows), share, 0.9, bottom, color=shades[part % 8], edgecolor="white", lw=0.3 if parts <= 32 else 0)
        bottom += share
    canvas.heading(axes, panel.site, panel.line, width=3.2, size=9)
    for place, count in enumerate(panel.counts if windows <= 20 else ()):
        if count:
            words = f"{count} {panel.what}" if windows <= 8 else str(count)
            axes.text(place, 1.01, words, ha="center", va="bottom", fontsize=7, color=canvas.VERMILLION)
    axes.set_ylim(0, 1.08)
    axes.tick_params(colors=canvas.GREY)
