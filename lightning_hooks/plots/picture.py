"""The figure that suits reports best, and those of attention heads, experts and residual streams."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.diagnostics.attention.table import AttentionReport
from lightning_hooks.diagnostics.reports import ClipReport, FeatureReport, GradientFlowReport, Report
from lightning_hooks.diagnostics.routers.routing import RouterReport
from lightning_hooks.plots.canvas import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Axes,
    Figure,
    alert_handles,
    along_layers,
    color_bar,
    decades,
    heading,
    legend,
    mark,
    name_epochs,
    name_layers,
    nothing,
    sheet,
    single,
    style,
    table,
)
from lightning_hooks.plots.clip import clip_history
from lightning_hooks.plots.flow import gradient_flow
from lightning_hooks.plots.heat import dead_units, heatmap
from lightning_hooks.plots.series import alerts_by_site, as_reports, check_report, kinds_by_severity

SHARES = {"entropy": "entropy over its maximum", "first_token_share": "share of the first token"}
_MEANING = {
    "entropy": "0: one key, 1: all keys alike",
    "first_token_share": "1: attention sink",
    "max_logit": "largest logit, scale times q·k",
    "masked_rows": "share of queries that may attend to no key",
    "nonfinite_rows": "share of queries with NaN or infinite values",
}


@style()
def attention_heads(report: AttentionReport, stat: str = "entropy") -> Figure:
    """Draw one statistic of every attention head of a window: a row per layer, a column per head.

    Args:
        report: The window's.
        stat: ``entropy``, ``first_token_share``, ``max_logit``, ``masked_rows`` or ``nonfinite_rows``.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no such statistic.
    """
    if stat not in _MEANING:
        raise ValueError(f"stat must be one of {', '.join(_MEANING)}; got {stat!r}.")
    title = f"Attention {stat} by head"
    names = tuple(report.sites)
    most = max((len(stats.heads) for stats in report.sites.values()), default=0)
    values = np.full((len(names), most), np.nan)
    for row, stats in enumerate(report.sites.values()):
        values[row, : len(stats.heads)] = [getattr(head, stat) for head in stats.heads]
    if not values.size:
        return nothing(title, "No attention was seen.")
    longest = min(max(map(len, names)), 34)
    width = float(np.clip(3.0 + 0.065 * longest + 0.3 * most, 5.6, 13.0))
    figure, axes = single(width, float(np.clip(1.9 + 0.24 * len(names), 2.8, 12.5)))
    heading(axes, title, f"{report.when}; {_MEANING[stat]}", width - 2.5)
    low, high = (None, None) if stat == "max_logit" else (0.0, 1.0)
    shown = np.ma.masked_invalid(values)
    mesh = table(axes, shown, (64, 64), vmin=low, vmax=high, cmap="viridis")
    step = -(-most // 16)
    axes.set_xticks(range(0, most, step))
    axes.set_xlabel("head")
    name_layers(axes, names, "y", "layer")
    if not np.ma.getmaskarray(shown).all():
        color_bar(figure, mesh, axes, SHARES.get(stat, stat))
    return figure


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


LINES = (
    ("rms", "all values", BLUE, "-"),
    ("channel_rms", "largest channel", ORANGE, "--"),
    ("median_channel_rms", "median channel", GREY, ":"),
)
"""The statistics that are drawn: name, text, colour and dashes."""

KINDS = ("activation_outliers", "residual_growth")


@style()
def residual_stream(report: FeatureReport) -> Figure:
    """Draw the RMS of the residual stream by depth, on a log axis: all values, the largest channel and the median one.

    A line ends where another stack of blocks begins. Blocks with an alert are marked.

    Args:
        report: One window's.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a FeatureReport.
    """
    check_report(report, FeatureReport, "FeatureStatsMonitor")
    title = f"Residual stream, {report.when}"
    names, blocks = list(report.residual), list(report.residual.values())
    if not blocks:
        return nothing(title, "The model is no stack of blocks that keep the shape of their input.")
    figure, axes = single(float(np.clip(1.8 + 0.25 * len(names), 6.4, 16.0)), 4.6)
    heading(axes, title, "RMS of what each block hands on to the next", figure.get_figwidth() - 0.8)
    values = {stat: _positive([getattr(block, stat) for block in blocks]) for stat, *_ in LINES}
    known = np.concatenate(list(values.values()))
    known = known[np.isfinite(known)]
    if not known.size:
        return nothing(title, f"The output of none of the {len(blocks)} blocks has a finite value above zero.")
    decades(axes, known)
    handles: list[Any] = []
    parts = _parts([block.stream for block in blocks])
    for stat, text, color, dashes in LINES:
        for start, end in parts:
            drawn = axes.plot(range(start, end), values[stat][start:end], color=color, ls=dashes, marker="o", ms=3.5, lw=1.3)
        handles += [*drawn]
        drawn[0].set_label(text)
    handles += _marks(axes, names, values["rms"], [alert for alert in report.alerts if alert.kind in KINDS])
    axes.set_ylabel("root mean square")
    along_layers(figure, axes, names, "block", handles)
    return figure


def _positive(values: list[float]) -> np.ndarray:
    """The values that a log axis can show; NaN elsewhere."""
    found = np.array(values, dtype=float)
    return np.where(np.isfinite(found) & (found > 0), found, np.nan)


def _parts(streams: list[str]) -> list[tuple[int, int]]:
    """Where each stack of blocks starts and ends."""
    starts = [number for number, stream in enumerate(streams) if not number or streams[number - 1] != stream]
    return list(zip(starts, [*starts[1:], len(streams)], strict=True))


def _marks(axes: Axes, names: list[str], values: np.ndarray, alerts: list[Alert]) -> list[Any]:
    found = {site: some for site, some in alerts_by_site(alerts).items() if site in names}
    for site, some in sorted(found.items(), key=lambda item: -gravity(item[1][0].severity)):
        at = names.index(site)
        if np.isfinite(values[at]):
            mark(axes, some[0].severity, [at], [values[at]])
        else:
            axes.axvline(at, color=VERMILLION, lw=0.8)
    return alert_handles(kinds_by_severity(alerts)) if found else []


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
