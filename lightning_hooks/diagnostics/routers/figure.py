"""The load of experts, as a figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_hooks.diagnostics.routers.routing import RouterReport
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.panels import MOST_PANELS, Stack, stack_figure
from lightning_hooks.plots.series import as_reports


def expert_load(reports: RouterReport | Sequence[RouterReport]) -> Figure:
    """Draw the share of the tokens' choices that each expert gets, a stacked bar for each window and a panel for each router.

    Experts are stacked in their order, in shades that come back every eight. Above a bar stands how many got nothing. Of more than
    twelve routers those with the least even load are drawn.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not RouterReports.
        ValueError: If there is none.
    """
    ordered = as_reports(reports, RouterReport, "RouterMonitor")
    last = {name: stats for report in ordered for name, stats in report.routers.items()}
    worst = set(sorted(last, key=lambda name: last[name].balance)[:MOST_PANELS])
    panels = []
    for name in [name for name in last if name in worst]:
        found, stats = [report.routers.get(name) for report in ordered], last[name]
        loads = np.array([[0.0] * stats.experts if window is None else window.load for window in found])
        idle = [0 if window is None else window.load.count(0.0) for window in found]
        line = f"{stats.experts} experts, {stats.top_k} for each token, balance {stats.balance:.2f}"
        panels.append(Stack(name, line, loads, idle, "dead"))
    return stack_figure("Load of experts", ordered, panels, axis="share of choices", missing="There was no router.")
