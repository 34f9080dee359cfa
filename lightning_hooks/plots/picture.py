"""Windows from left to right: clipping, and the load of experts; and the figure that suits reports best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_hooks.declare.report import Report
from lightning_hooks.diagnostics.attention.table import AttentionReport
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.diagnostics.routers.routing import RouterReport
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
    mark_alerts,
    name_epochs,
    nothing,
    positive,
    sheet,
    style,
)
from lightning_hooks.plots.heat import attention_heads, dead_units, heatmap
from lightning_hooks.plots.layers import gradient_flow
from lightning_hooks.plots.series import as_reports, beginnings

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
        began = [(index, alert) for index, alert in beginnings(ordered) if alert.site == name]
        heights = _numbers(rows, "norm_before")
        points = [(at, heights[at] if positive(heights[at]) else np.nan, alert.severity) for at, alert in began]
        mark_alerts(norms, points, edge=0.7)
    stats = [stats for report in ordered for stats in report.optimizers.values()]
    decades(grid[0, 0], np.concatenate([_numbers(stats, "limit"), *(_numbers(stats, stat) for line in LINES for stat in line[3:])]))
    grid[0, 0].set_ylabel("total gradient norm (L2)")
    grid[1, 0].set_ylabel("share of steps")
    shown = (alert for report in ordered for alert in report.alerts if alert.site in optimizers)
    legend(figure, [*handles.values(), *alert_handles(shown)])
    return figure


def _summary(rows: Sequence[Any]) -> str:
    observed = [row for row in rows if row is not None]
    steps = sum(row.steps for row in observed)
    if not steps:
        return "no step was taken"
    return f"{sum(row.clipped_steps for row in observed) / steps:.0%} of {steps} steps clipped"


def _numbers(rows: Sequence[Any], stat: str) -> np.ndarray:
    return np.array([np.nan if row is None else getattr(row, stat) for row in rows], dtype=float)


def _norms(axes: Axes, rows: Sequence[Any], handles: dict[str, Any]) -> None:
    x = np.arange(len(rows))
    for text, color, marker, mean, largest in LINES:
        y, top = _numbers(rows, mean), _numbers(rows, largest)
        y = np.where(y > 0, y, np.nan)
        axes.fill_between(x, y, top, color=color, alpha=0.18, lw=0)
        if len(rows) == 1:
            axes.vlines(x, y, top, color=color, alpha=0.4, lw=6)
        (line,) = axes.plot(
            x, y, color=color, marker=marker, ms=4 if len(rows) <= 60 else 1.5, label=f"{text}: mean, to the largest"
        )
        handles.setdefault(text, line)
    limits = _numbers(rows, "limit")
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
            _loads(axes, names[place], shown)
        else:
            axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("share of choices")
    alerts = (alert for report in ordered for alert in report.alerts if alert.site in last)
    legend(figure, alert_handles(alerts))
    return figure


def _loads(axes: Axes, name: str, reports: Sequence[RouterReport]) -> None:
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


def picture(reports: Report | Sequence[Report], stat: str | None = None) -> Figure:
    """Draw reports: one statistic as a heat map, or the default figure of their kind.

    That is the gradient flow of the last epoch, the history of clipping, the load of experts, the width of quantisation steps,
    and of outputs the dead units of rectifiers, or, where there is no rectifier, the spread of every module's output.

    Args:
        reports: One or several of one kind; any order.
        stat: A field of their statistics, such as ``rms``.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not reports of one kind.
        ValueError: If there is none, or none has the statistic.
    """
    ordered: list[Any] = as_reports(reports)
    last = ordered[-1]
    if isinstance(last, AttentionReport):
        return attention_heads(last, stat or "entropy")
    if stat is not None:
        return heatmap(ordered, stat)
    if isinstance(last, GradientFlowReport):
        return gradient_flow(last)
    if isinstance(last, FeatureReport):
        rectifiers = any(stats.dead_fraction is not None for report in ordered for stats in report.sites.values())
        return dead_units(ordered) if rectifiers else heatmap(ordered, "std")
    if isinstance(last, RouterReport):
        return expert_load(ordered)
    return clip_history(ordered) if isinstance(last, ClipReport) else heatmap(ordered, "scale")
