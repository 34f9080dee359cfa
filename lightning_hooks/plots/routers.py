"""The load of experts over the windows of a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_hooks.diagnostics.routers.report import RouterReport
from lightning_hooks.plots.canvas import (
    GREY,
    VERMILLION,
    Axes,
    Figure,
    alert_handles,
    heading,
    legend,
    name_epochs,
    nothing,
    sheet,
    style,
)
from lightning_hooks.plots.series import as_reports, kinds_by_severity

MOST_ROUTERS = 12
"""Routers that get a panel; of more, those with the least even load."""
MOST_COLUMNS = 60
"""Windows that get a bar; of more, evenly spaced ones."""


@style()
def expert_load(reports: RouterReport | Sequence[RouterReport]) -> Figure:
    """Draw the share of the tokens' choices that each expert gets, a stacked bar for each window and a panel for each router.

    Experts are stacked in their order, in shades that come back every eight. Above a bar stands how many got nothing.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not RouterReports.
        ValueError: If there is none.
    """
    ordered = as_reports(reports, RouterReport, "RouterMonitor")
    last = {name: stats for report in ordered for name, stats in report.routers.items()}
    title = "Load of experts"
    if not last:
        return nothing(title, "There was no router.")
    worst = set(sorted(last, key=lambda name: last[name].balance)[:MOST_ROUTERS])
    names = [name for name in last if name in worst]
    shown = ordered[:: math.ceil(len(ordered) / MOST_COLUMNS)]
    columns = min(len(names), 3)
    rows = math.ceil(len(names) / columns)
    wide = float(np.clip(2.6 + 0.1 * len(shown), 3.4, 7.0))
    figure = sheet(max(wide * columns, 5.6), 0.6 + 2.5 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for place, axes in enumerate(grid.flat):
        if place < len(names):
            _bars(axes, names[place], shown)
        else:
            axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("share of choices")
    alerts = (alert for report in ordered for alert in report.alerts if alert.site in last)
    legend(figure, alert_handles(kinds_by_severity(alerts)))
    return figure


def _bars(axes: Axes, name: str, reports: Sequence[RouterReport]) -> None:
    """One router: a stacked bar for each window."""
    from matplotlib import colormaps

    found: list[Any] = [report.routers.get(name) for report in reports]
    experts = next(stats.experts for stats in found if stats is not None) if any(found) else 0
    loads = np.array([[0.0] * experts if stats is None else stats.load for stats in found])
    bottom, places = np.zeros(len(found)), np.arange(len(found))
    shades = colormaps["viridis"](np.linspace(0.1, 0.95, 8))
    for expert in range(experts):
        axes.bar(places, loads[:, expert], 0.9, bottom, color=shades[expert % 8], edgecolor="white", lw=0.3 if experts <= 32 else 0)
        bottom += loads[:, expert]
    dead = [len(stats.dead_experts) if stats is not None else 0 for stats in found]
    stats = next(stats for stats in reversed(found) if stats is not None)
    heading(axes, name, f"{experts} experts, {stats.top_k} for each token, balance {stats.balance:.2f}", width=3.2, size=9)
    for place, count in enumerate(dead):
        if count and len(found) <= 20:
            words = f"{count} dead" if len(found) <= 8 else str(count)
            axes.text(place, 1.01, words, ha="center", va="bottom", fontsize=7, color=VERMILLION)
    axes.set_ylim(0, 1.08)
    axes.tick_params(colors=GREY)
    name_epochs(axes, [report.at for report in reports], unit=reports[-1].unit)
