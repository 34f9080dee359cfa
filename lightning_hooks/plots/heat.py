"""Tables of numbers: any statistic of layers by epochs, and the parts of layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.declare.window import Report
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.series import (
    FRACTIONS,
    SIGNED,
    as_reports,
    beginnings,
    relative_to_first,
    series,
    window_of,
)


@canvas.style()
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
    relative = magnitude and len(table.epochs) > 1 if relative is None else relative
    if relative:
        table = dataclasses.replace(table, values=relative_to_first(table.values))
    title = f"{ordered[0].subject} {stat} by {table.noun}"
    if not table.names:
        return canvas.nothing(title, f"{stat} applies to none of them.")
    width = canvas.within(2.4 + 0.065 * min(max(map(len, table.names)), 34) + 0.16 * len(table.epochs), 5.6, 13.0)
    figure, axes = canvas.single(width, canvas.within(1.9 + 0.19 * len(table.names), 2.8, 12.5))
    hatched = "" if np.isfinite(table.values).all() else "; hatched where nothing finite was measured"
    against = f"; each row relative to its first {window_of(table.unit)}" if relative else ""
    one, several = f"{table.unit} {table.epochs[0]}", f"{table.unit}s {table.epochs[0]} to {table.epochs[-1]}"
    canvas.heading(axes, title, (one if len(table.epochs) == 1 else several) + against + hatched, width - 2.5)
    shown, norm, colors, ticks = _relative_scale(table.values) if relative else _scale(table.values, stat)
    mesh = canvas.table(axes, shown, (40, 60), norm=norm, cmap=colors)
    canvas.name_epochs(axes, table.epochs, max(2, min(len(table.epochs), 12)), table.unit)
    canvas.name_layers(axes, table.names, "y", table.noun)
    if not np.ma.getmaskarray(shown).all():
        label = f"{stat} over that of the first {window_of(table.unit)}" if relative else f"{stat}, {_unit(stat)}"
        canvas.color_bar(figure, mesh, axes, label, **ticks)
    place = {name: row for row, name in enumerate(table.names)}
    began = [(index, alert) for index, alert in beginnings(ordered) if alert.site in place]
    size = canvas.within(40 / len(place), 0.3, 1.0)
    canvas.mark_alerts(axes, [(x, place[alert.site], alert.severity) for x, alert in began], size, 0.7 * (len(place) <= 120))
    canvas.legend(figure, canvas.alert_handles(alert for _, alert in began))
    return figure


@canvas.style()
def cell_figure(
    title: str,
    line: str,
    rows: Mapping[str, Sequence[float]],
    *,
    part: str,
    scale: str,
    limits: tuple[float, float] | None,
    missing: str,
) -> Figure:
    """Draw a row per layer and a column per ``part`` of it, such as a head; a figure that says ``missing`` where there is no layer.

    The colours show ``scale``, between ``limits`` or from the smallest to the largest number.
    """
    most = max(map(len, rows.values()), default=0)
    if not most:
        return canvas.nothing(title, missing)
    width = canvas.within(3.0 + 0.065 * min(max(map(len, rows)), 34) + 0.3 * most, 5.6, 13.0)
    figure, axes = canvas.single(width, canvas.within(1.9 + 0.24 * len(rows), 2.8, 12.5))
    canvas.heading(axes, title, line, width - 2.5)
    low, high = limits or (None, None)
    shown = np.ma.masked_invalid([[*row, *[np.nan] * (most - len(row))] for row in rows.values()])
    mesh = canvas.table(axes, shown, (64, 64), vmin=low, vmax=high, cmap="viridis")
    axes.set_xticks(range(0, most, -(-most // 16)))
    axes.set_xlabel(part)
    canvas.name_layers(axes, tuple(rows), "y", "layer")
    if not np.ma.getmaskarray(shown).all():
        canvas.color_bar(figure, mesh, axes, scale)
    return figure


def _relative_scale(values: np.ndarray) -> tuple[np.ndarray, Any, str, dict[str, Any]]:
    """As :func:`_scale`, for sizes over the first of their row: less is blue, the same white, more red."""
    from matplotlib.colors import LogNorm

    finite = np.isfinite(values)
    powers = np.abs(np.log10(canvas.within(values[finite & (values > 0)], 1e-100, 1e100)))
    most = max(float(powers.max(initial=0.0)), np.log10(2.0))
    shown = np.ma.masked_array(np.where(values == 0, 10.0**-most, values), ~finite)
    ticks = {
        "ticks": [10.0 ** (share * most) for share in (-1, -0.5, 0, 0.5, 1)],
        "format": lambda value, _: f"{value:.2g}x" if value < 100 else f"{value:.0e}x",
    }
    return shown, LogNorm(10.0**-most, 10.0**most), "RdBu_r", ticks


def _scale(values: np.ndarray, stat: str) -> tuple[np.ndarray, Any, str, dict[str, Any]]:
    from matplotlib.colors import AsinhNorm, LogNorm, Normalize
    from matplotlib.ticker import LogLocator

    finite = np.isfinite(values)
    if stat in FRACTIONS:
        return np.ma.masked_array(values, ~finite), Normalize(0, 1), "viridis", {"format": lambda v, _: f"{v:.0%}"}
    if stat in SIGNED:
        sizes = canvas.within(np.abs(values[finite & (values != 0)]), canvas.SMALLEST, canvas.LARGEST)
        largest = float(sizes.max(initial=0.0)) or 1.0
        linear = max(float(np.quantile(sizes, 0.1)) if sizes.size else 0.1, largest * 1e-6)
        return np.ma.masked_array(values, ~finite), AsinhNorm(linear, -largest, largest), "RdBu_r", {"format": canvas.signed}
    positive = finite & (values > 0)
    some = canvas.within(values[positive], canvas.SMALLEST, canvas.LARGEST) if positive.any() else np.array([1.0])
    lowest, highest = float(some.min()), float(some.max())
    if highest / lowest < 10:
        lowest, highest = lowest / 10**0.5, highest * 10**0.5
    shown = np.ma.masked_array(np.where(values == 0, lowest, values), ~finite)  # zero is the scale's bottom
    if np.floor(np.log10(highest)) - np.ceil(np.log10(lowest)) < 2:  # few decades: numbers between them, too
        return shown, LogNorm(lowest, highest), "viridis", {"ticks": LogLocator(subs=(1, 2, 5)), "format": "%.3g"}
    return shown, LogNorm(lowest, highest), "viridis", {"ticks": LogLocator(numticks=9), "format": canvas.signed_power}


def _unit(stat: str) -> str:
    if stat in FRACTIONS:
        return "share"
    if stat.endswith("_steps") or stat in ("steps", "calls", "count"):
        return "count"
    return "no unit" if stat == "update_ratio" else "log scale"
