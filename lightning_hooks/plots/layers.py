"""Layers from left to right on a log axis: what figures of gradients, updates and the residual stream are drawn with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.plots.canvas import Axes, Figure
from lightning_hooks.trackers.console import shortened

COLORS = (canvas.BLUE, canvas.ORANGE, canvas.GREEN, canvas.PURPLE, canvas.SKY, canvas.VERMILLION, canvas.INK)
DASHES: tuple[tuple[Any, Any], ...] = (("-", "--"), (":", (0, (1, 4))))
"""Of weights and modules, and of biases, which share the colour of their weight: the first seven roles, and the next."""

OTHER = "other"
"""The role of layers that are like no two others."""
ALIKE = 3
"""So many layers of one role make a line of their own."""


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


def layer_sheet(names: Sequence[str], title: str, line: str, per_layer: float = 0.2) -> tuple[Figure, Axes]:
    """An empty figure with room for so many layers."""
    figure, axes = canvas.single(canvas.within(1.8 + per_layer * len(names), 6.4, 16.0), 4.6 if len(names) <= 8 else 5.2)
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
