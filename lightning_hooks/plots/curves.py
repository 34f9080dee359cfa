"""Curves and bars: layers from left to right on a log axis, and windows from left to right in panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.declare.window import Report
from lightning_hooks.plots.canvas import Axes, Figure
from lightning_hooks.plots.series import beginnings
from lightning_hooks.trackers.console import shortened

COLORS = (canvas.BLUE, canvas.ORANGE, canvas.GREEN, canvas.PURPLE, canvas.SKY, canvas.VERMILLION, canvas.INK)
# Of weights and modules, and of biases, which share the colour of their weight: the first seven roles, and the next.
DASHES: tuple[tuple[Any, Any], ...] = (("-", "--"), (":", (0, (1, 4))))

OTHER = "other"  # the role of layers that are like no two others
ALIKE = 3  # so many layers of one role make a line of their own


def role(name: str) -> str:
    """The role of a layer or parameter: what its name says after the number of its block, or its last part.

    Example:
        >>> [role(name) for name in ("h.3.attn.q.weight", "layer1.0.conv1", "head.bias", "net.4")]
        ['attn.q.weight', 'conv1', 'bias', '']
    """
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdigit()), len(parts) - 2)
    return ".".join(parts[number + 1 :])


def by_role(names: Sequence[str]) -> dict[str, list[int]]:
    """Role to the places of its layers, the roles with most layers first; roles of fewer than three share the name ``other``.

    Where no role has three, there are two: weights and biases.
    """
    found = _places([role(name) for name in names])
    if not any(len(places) >= ALIKE for places in found.values()):
        return _places(["bias" if name.rpartition(".")[2] == "bias" else "" for name in names])
    rest = sorted(place for places in found.values() if len(places) < ALIKE for place in places)
    lines = {what: places for what, places in found.items() if len(places) >= ALIKE}
    return {**lines, OTHER: rest} if rest else lines


def _places(roles: Sequence[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, what in enumerate(roles):
        found.setdefault(what, []).append(place)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def numbers_of(table: Mapping[str, Any], stat: str) -> np.ndarray:
    """A statistic of each row of a report's table."""
    return np.array([getattr(stats, stat) for stats in table.values()], dtype=float)


def layer_sheet(names: Sequence[str], title: str, line: str) -> tuple[Figure, Axes]:
    """An empty figure with room for so many layers."""
    figure, axes = canvas.single(canvas.within(1.8 + 0.2 * len(names), 6.4, 16.0), 4.6 if len(names) <= 8 else 5.2)
    canvas.heading(axes, title, line, figure.get_figwidth() - 0.8)
    return figure, axes


def with_names(figure: Figure, axes: Axes, names: Sequence[str], what: str, handles: Sequence[Any]) -> Figure:
    """The figure with its layers' names, a grid, and the legend."""
    axes.grid(axis="y")
    axes.set_xlim(-0.6, len(names) - 0.4)
    canvas.name_layers(axes, names, "x", what)
    canvas.legend(figure, handles)
    return figure


def spread_band(axes: Axes, shown: np.ndarray, low: np.ndarray, high: np.ndarray, text: str) -> list[Any]:
    """Shade what lies between two numbers of each layer."""
    bottom, top = axes.get_ylim()
    low = np.where(canvas.positive(low), canvas.within(low, bottom, top), bottom)
    high = canvas.within(np.where(shown, high, np.nan), bottom, top)
    alone = np.flatnonzero(shown & ~np.append(shown[1:], False) & ~np.append(False, shown[:-1]))
    axes.fill_between(np.arange(len(shown)), low, high, where=shown, color=canvas.SKY, alpha=0.3, lw=0)
    axes.vlines(alone, low[alone], high[alone], color=canvas.SKY, alpha=0.45, lw=3)
    return [patch(canvas.SKY, text)]


def role_lines(axes: Axes, roles: Mapping[str, Sequence[int]], values: np.ndarray, layers: int) -> list[Any]:
    """A line for each role along the model: a line through layers of different roles would zigzag without meaning."""
    handles = []
    look: dict[str, Any]
    bases = list(dict.fromkeys(_base(role) for role in roles if role != OTHER))
    unnamed = "RMS" if len(roles) == 1 else "weights" if "bias" in roles else "numbered layers"
    for role, at in roles.items():
        if role == OTHER:
            look, text, cycle = {"color": canvas.INK, "ls": "", "marker": "D"}, "single layers", 0
        else:
            cycle, number = divmod(bases.index(_base(role)), len(COLORS))
            dashes = DASHES[role.rpartition(".")[2] == "bias"][min(cycle, 1)]
            # More than two cycles of colours cannot be distinguished.
            color, text = COLORS[number] if cycle <= 1 else canvas.GREY, role or unnamed
            look = {"color": color, "ls": dashes, "marker": "o", "lw": 1.3}
        (line,) = axes.plot(at, values[at], ms=dot_size(layers), zorder=3, label=canvas.plain(shortened(text)), **look)
        handles += [line] * (cycle <= 1)
    return handles


def _base(role: str) -> str:
    """The layer's role, of its weight and its bias alike."""
    return role.removesuffix("weight").removesuffix("bias").removesuffix(".")


def dot_size(layers: int, largest: float = 4.5) -> float:
    """The size of a marker among so many, in points."""
    return canvas.within(largest * 60 / max(layers, 1), 1.6, largest)


def patch(color: str, text: str, alpha: float = 0.3) -> Any:
    """A legend's entry for an area."""
    from matplotlib.patches import Patch

    return Patch(color=color, alpha=alpha, lw=0, label=text)


def mark_the_rest(axes: Axes, values: np.ndarray, what: str) -> list[Any]:
    """Mark at the bottom of a log axis what it cannot show: zero, and what is not finite."""
    handles = []
    look: dict[str, Any] = {"ls": "", "ms": 5, "transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    for chosen, marker, color, text in (
        (values == 0, "v", canvas.GREY, f"{what} is zero"),
        (~np.isfinite(values), "x", canvas.INK, "no finite value"),
    ):
        if chosen.any():
            handles += axes.plot(np.flatnonzero(chosen), np.zeros(chosen.sum()), marker, color=color, label=text, **look)
    return handles


def mark_affected(axes: Axes, names: Sequence[str], values: np.ndarray, alerts: Sequence[Alert]) -> list[Any]:
    """Mark what has an alert, each with its most severe one; a parameter's alert marks its module where modules are drawn."""
    places = {name: place for place, name in enumerate(names)}
    at = [(places.get(alert.site, places.get(alert.site.rpartition(".")[0])), alert) for alert in alerts]
    shown = [(place, alert) for place, alert in at if place is not None]
    worst = {place: alert.severity for place, alert in sorted(shown, key=lambda found: -gravity(found[1].severity))}
    points = [(place, values[place] if canvas.positive(values[place]) else np.nan, severity) for place, severity in worst.items()]
    canvas.mark_alerts(axes, points, canvas.within(60 / max(len(names), 1), 0.5, 1.0))
    return canvas.alert_handles(alert for _, alert in shown)


LOOKS = ((canvas.BLUE, "o"), (canvas.ORANGE, "s"))  # the colour and the marker of the curves of a panel, in order
# The colour and the hatching of the shares below them.
FILLS = ((canvas.SKY, ""), (canvas.PURPLE, "///"), (canvas.VERMILLION, "xxx"))


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
    sites = {panel.site for panel in panels}
    alerts = canvas.alert_handles(alert for report in reports for alert in report.alerts if alert.site in sites)
    canvas.legend(figure, [*handles.values(), *alerts])
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
