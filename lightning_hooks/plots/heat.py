"""Tables of numbers: any statistic of layers by epochs, the dead units of rectifiers, and attention by head."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lightning_hooks.alerts.defaults import limit_of
from lightning_hooks.declare.report import Report
from lightning_hooks.diagnostics.attention.table import AttentionReport
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.plots.canvas import (
    BLUE,
    LARGEST,
    PALE,
    SMALLEST,
    VERMILLION,
    Axes,
    Figure,
    alert_handles,
    color_bar,
    heading,
    legend,
    mark_alerts,
    name_epochs,
    name_layers,
    nothing,
    sheet,
    signed_power,
    single,
    style,
)
from lightning_hooks.plots.canvas import table as draw_table
from lightning_hooks.plots.series import (
    FRACTIONS,
    SIGNED,
    Series,
    as_reports,
    beginnings,
    relative_to_first,
    series,
)

_HEAD_SHARES = {"entropy": "entropy over its maximum", "first_token_share": "share of the first token"}
_MEANING = {
    "entropy": "0: one key, 1: all keys alike",
    "first_token_share": "1: attention sink",
    "max_logit": "largest logit, scale times q·k",
    "masked_rows": "share of queries that may attend to no key",
    "nonfinite_rows": "share of queries with NaN or infinite values",
}


@style()
def heatmap(reports: Report | Sequence[Report], stat: str, *, of: str | None = None, relative: bool | None = None) -> Figure:
    """Draw one statistic of all layers over the epochs; a mark shows where an alert began.

    Shares have a linear scale from 0 to 1, magnitudes a log scale, and what has a sign a scale that diverges from zero. Hatched
    is what was not measured, or had no finite value.

    Args:
        reports: One or several of one kind; any order.
        stat: A field of their statistics, such as ``rms``, ``std``, ``dead_fraction`` or ``update_ratio``.
        of: ``module`` or ``parameter``, for a statistic that both have; None for modules where they have it.
        relative: Whether each row is relative to its own first epoch, which shows what changed: layers of different types differ a
            thousandfold in healthy runs, and would be stripes. None for magnitudes over several epochs.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not reports of one kind.
        ValueError: If there is none, or none has the statistic.
    """
    ordered = as_reports(reports)
    table = series(ordered, stat, of)
    magnitude = stat not in FRACTIONS and stat not in SIGNED and not stat.endswith("_steps")
    if relative is None:
        relative = magnitude and len(table.epochs) > 1
    if relative:
        table = dataclasses.replace(table, values=relative_to_first(table.values))
    subject = {GradientFlowReport: "Gradient", ClipReport: "Clipping"}.get(type(ordered[0]), "Output")
    title = f"{subject} {stat} by {table.noun}"
    if not table.names:
        return nothing(title, f"{stat} applies to none of them.")
    figure, axes = single(_width(table), _height(table))
    hatched = "" if np.isfinite(table.values).all() else "; hatched where nothing finite was measured"
    against = f"; each row relative to its first {_of(table)}" if relative else ""
    heading(axes, title, _span(table) + against + hatched, figure.get_figwidth() - 2.5)
    _cells(figure, axes, table, stat, relative=relative)
    legend(figure, _beginnings(axes, table, ordered))
    return figure


@style()
def dead_units(reports: FeatureReport | Sequence[FeatureReport]) -> Figure:
    """Draw the share of dead units of each rectifier: over the epochs, and in the last one.

    A unit is dead in an epoch if it gave zero for every sampled input. The line is the share above which the default rule alerts.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not FeatureReports.
        ValueError: If there is none.
    """
    ordered = as_reports(reports, FeatureReport, "FeatureStatsMonitor")
    title = "Dead units of rectifiers"
    if not any(stats.dead_fraction is not None for report in ordered for stats in report.sites.values()):
        return nothing(title, "No rectifier (nn.ReLU, nn.ReLU6) was observed.")
    table = series(ordered, "dead_fraction")
    several, last = len(ordered) > 1, f"{table.unit} {table.epochs[-1]}"
    figure = sheet(_width(table) + (2.6 if several else 1.2), _height(table))
    if several:
        axes, bars = figure.subplots(1, 2, sharey=True, width_ratios=[max(_width(table) - 2.2, 1.5), 2.4])
        heading(axes, title, _span(table))
        _cells(figure, axes, table, "dead_fraction", colorbar=False)
        handles = _beginnings(axes, table, ordered)
        bars.tick_params(left=False, labelleft=False)
    else:
        bars = figure.add_subplot()
        heading(bars, title, last)
        bars.set_ylim(len(table.names) - 0.5, -0.5)
        name_layers(bars, table.names, "y", "rectifier")
        handles = alert_handles(alert for alert in ordered[-1].alerts if alert.site in table.names)
    _bars(bars, table.values[:, -1], last, limit_of("dead", (alert for report in ordered for alert in report.alerts)))
    legend(figure, handles)
    return figure


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
    names, layers = tuple(report.sites), [stats.heads for stats in report.sites.values()]
    most = max(map(len, layers), default=0)
    if not most:
        return nothing(title, "No attention was seen.")
    values = np.array([[getattr(head, stat) for head in heads] + [np.nan] * (most - len(heads)) for heads in layers])
    width = float(np.clip(3.0 + 0.065 * min(max(map(len, names)), 34) + 0.3 * most, 5.6, 13.0))
    figure, axes = single(width, float(np.clip(1.9 + 0.24 * len(names), 2.8, 12.5)))
    heading(axes, title, f"{report.when}; {_MEANING[stat]}", width - 2.5)
    low, high = (None, None) if stat == "max_logit" else (0.0, 1.0)
    shown = np.ma.masked_invalid(values)
    mesh = draw_table(axes, shown, (64, 64), vmin=low, vmax=high, cmap="viridis")
    axes.set_xticks(range(0, most, -(-most // 16)))
    axes.set_xlabel("head")
    name_layers(axes, names, "y", "layer")
    if not np.ma.getmaskarray(shown).all():
        color_bar(figure, mesh, axes, _HEAD_SHARES.get(stat, stat))
    return figure


BAR_TEXT: dict[str, Any] = {"va": "center", "fontsize": 7}
"""How a number next to a bar is written."""


def _bars(axes: Axes, shares: np.ndarray, when: str, limit: float) -> None:
    y, height = np.arange(len(shares)), 0.82 if len(shares) <= 120 else 1.0
    axes.barh(y, np.ones_like(shares), color=PALE, height=height)
    axes.barh(y, np.nan_to_num(shares), color=list(np.where(shares > limit, VERMILLION, BLUE)), height=height)
    axes.axvline(limit, color="black", lw=0.9, ls=(0, (4, 3)))
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    axes.set_xlabel(f"dead units in {when}")
    for row, share in enumerate(shares if len(y) <= 40 else ()):
        text = "not observed" if np.isnan(share) else f"{share:.0%}"
        if share > 0.8:
            axes.text(share - 0.02, row, text, ha="right", color="white", **BAR_TEXT)
        else:
            box = {"fc": PALE, "ec": "none", "pad": 0.5}
            axes.text(np.nan_to_num(share) + 0.02, row, text, ha="left", color="black", bbox=box, **BAR_TEXT)


def _cells(figure: Figure, axes: Axes, table: Series, stat: str, colorbar: bool = True, relative: bool = False) -> None:
    columns = table.values.shape[1]
    shown, norm, colors, ticks = _relative_scale(table.values) if relative else _scale(table.values, stat)
    mesh = draw_table(axes, shown, (40, 60), norm=norm, cmap=colors)
    name_epochs(axes, table.epochs, max(2, columns if columns <= 12 else 12), table.unit)
    name_layers(axes, table.names, "y", table.noun)
    if colorbar and not np.ma.getmaskarray(shown).all():
        label = f"{stat} over that of the first {_of(table)}" if relative else f"{stat}, {_unit(stat)}"
        color_bar(figure, mesh, axes, label, **ticks)


def _relative_scale(values: np.ndarray) -> tuple[np.ndarray, Any, str, dict[str, Any]]:
    """As :func:`_scale`, for sizes over the first of their row: less is blue, the same white, more red."""
    from matplotlib.colors import LogNorm

    finite = np.isfinite(values)
    powers = np.abs(np.log10(np.clip(values[finite & (values > 0)], 1e-100, 1e100)))
    most = max(float(powers.max(initial=0.0)), np.log10(2.0))
    shown = np.ma.masked_array(np.where(values == 0, 10.0**-most, values), ~finite)
    places = [10.0 ** (share * most) for share in (-1, -0.5, 0, 0.5, 1)]
    ticks = {"ticks": places, "format": lambda value, _: f"{value:.2g}x" if value < 100 else f"{value:.0e}x"}
    return shown, LogNorm(10.0**-most, 10.0**most), "RdBu_r", ticks


def _scale(values: np.ndarray, stat: str) -> tuple[np.ndarray, Any, str, dict[str, Any]]:
    """What is coloured (masked where nothing can be), and how."""
    from matplotlib.colors import LogNorm, Normalize, SymLogNorm

    finite = np.isfinite(values)
    if stat in FRACTIONS:
        return np.ma.masked_array(values, ~finite), Normalize(0, 1), "viridis", {"format": lambda v, _: f"{v:.0%}"}
    if stat in SIGNED:
        sizes = np.clip(np.abs(values[finite & (values != 0)]), SMALLEST, LARGEST)
        largest = float(sizes.max()) if sizes.size else 1.0
        smallest = max(float(np.quantile(sizes, 0.1)) if sizes.size else 0.1, largest * 1e-6)
        top, low = int(np.ceil(np.log10(largest))), int(np.floor(np.log10(smallest)))
        low = min(low, top - 1)
        step = max(1, -(-(top - low) // 4))
        powers = [10.0**power for power in range(top, low, -step)]
        ticks = [*(-power for power in powers), 0.0, *reversed(powers)]
        norm = SymLogNorm(10.0**low, linscale=0.5, vmin=-(10.0**top), vmax=10.0**top, base=10)
        return np.ma.masked_array(values, ~finite), norm, "RdBu_r", {"ticks": ticks, "format": signed_power}
    positive = finite & (values > 0)
    some = np.clip(values[positive], SMALLEST, LARGEST) if positive.any() else np.array([1.0])
    lowest, highest = float(some.min()), float(some.max())
    if highest / lowest < 10:
        lowest, highest = lowest / 10**0.5, highest * 10**0.5
    first, last = int(np.ceil(np.log10(lowest))), int(np.floor(np.log10(highest)))
    step = max(1, -(-(last - first) // 7))
    if last - first >= 2:
        places = [10.0**power for power in range(first, last + 1) if power % step == 0]
        text: Any = signed_power
    else:  # few decades: numbers between them, too
        places = [digit * 10.0**power for power in range(first - 1, last + 1) for digit in (1, 2, 5)]
        text = "%.3g"
    shown = np.ma.masked_array(np.where(values == 0, lowest, values), ~finite)  # zero is the scale's bottom
    return shown, LogNorm(lowest, highest), "viridis", {"ticks": places, "format": text}


def _unit(stat: str) -> str:
    if stat in FRACTIONS:
        return "share"
    if stat.endswith("_steps") or stat in ("steps", "calls", "count"):
        return "count"
    return "no unit" if stat == "update_ratio" else "log scale"


def _beginnings(axes: Axes, table: Series, reports: Sequence[Report]) -> list[Any]:
    place = {name: row for row, name in enumerate(table.names)}
    began = [(index, alert) for index, alert in beginnings(reports) if alert.site in place]
    size = float(np.clip(40 / max(len(place), 1), 0.3, 1.0))
    mark_alerts(axes, [(x, place[alert.site], alert.severity) for x, alert in began], size, 0.7 * (len(place) <= 120))
    return alert_handles(alert for _, alert in began)


def _of(table: Series) -> str:
    return "epoch" if table.unit == "epoch" else "window"


def _span(table: Series) -> str:
    first, last = table.epochs[0], table.epochs[-1]
    return f"{table.unit} {first}" if len(table.epochs) == 1 else f"{table.unit}s {first} to {last}"


def _width(table: Series) -> float:
    longest = min(max(map(len, table.names), default=0), 34)
    return float(np.clip(2.4 + 0.065 * longest + 0.16 * len(table.epochs), 5.6, 13.0))


def _height(table: Series) -> float:
    return float(np.clip(1.9 + 0.19 * len(table.names), 2.8, 12.5))
