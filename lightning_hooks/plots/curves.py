"""Figures of layers from left to right on a log axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity


def numbers_of(table: Mapping[str, Any], stat: str) -> np.ndarray:
    """A statistic of each row of a report's table."""
    return np.array([getattr(stats, stat) for stats in table.values()], dtype=float)


def layer_sheet(names: Sequence[str], title: str, line: str) -> tuple[canvas.Figure, canvas.Axes]:
    """An empty figure with room for so many layers."""
    figure, axes = canvas.single(canvas.within(1.8 + 0.2 * len(names), 6.4, 16.0), 4.6 if len(names) <= 8 else 5.2)
    canvas.heading(axes, title, line, figure.get_figwidth() - 0.8)
    return figure, axes


def with_names(figure: canvas.Figure, axes: canvas.Axes, names: Sequence[str], what: str, handles: Sequence[Any]) -> canvas.Figure:
    """The figure with its layers' names, a grid, and the legend."""
    axes.grid(axis="y")
    axes.set_xlim(-0.6, len(names) - 0.4)
    canvas.name_layers(axes, names, "x", what)
    canvas.legend(figure, handles)
    return figure


def layer_dots(axes: canvas.Axes, names: Sequence[str], values: np.ndarray, what: str) -> list[Any]:
    """A dot for each ``what`` with a positive number: hollow for biases, which differ from weights in healthy runs."""
    bias = np.array([name.rpartition(".")[2] == "bias" for name in names])
    size = canvas.within(5.5 * 60 / max(len(names), 1), 1.6, 5.5) ** 2
    return [
        axes.scatter(at, values[at], s=size, color=face, ec=canvas.BLUE, zorder=3, label=text)
        for chosen, text, face in ((~bias, "weight" if bias.any() else what, canvas.BLUE), (bias, "bias", "white"))
        for at in [np.flatnonzero(chosen & canvas.positive(values))]
        if at.size
    ]


def mark_the_rest(axes: canvas.Axes, values: np.ndarray, what: str) -> list[Any]:
    """Mark at the bottom of a log axis what it cannot show: zero, and what is not finite."""
    look: dict[str, Any] = {"ls": "", "ms": 5, "transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    marks = (
        (values == 0, "v", canvas.GREY, f"{what} is zero"),
        (~np.isfinite(values), "x", canvas.INK, "no finite value"),
    )
    return [
        handle
        for chosen, marker, color, text in marks
        if chosen.any()
        for handle in axes.plot(np.flatnonzero(chosen), np.zeros(chosen.sum()), marker, color=color, label=text, **look)
    ]


def mark_affected(axes: canvas.Axes, names: Sequence[str], values: np.ndarray, alerts: Sequence[Alert]) -> list[Any]:
    """Mark what has an alert, each with its most severe one; a parameter's alert marks its module where modules are drawn."""
    places = {name: place for place, name in enumerate(names)}
    at = [(places.get(alert.site, places.get(alert.site.rpartition(".")[0])), alert) for alert in alerts]
    shown = [(place, alert) for place, alert in at if place is not None]
    worst = {place: alert.severity for place, alert in sorted(shown, key=lambda found: -gravity(found[1].severity))}
    points = [(place, values[place] if canvas.positive(values[place]) else np.nan, severity) for place, severity in worst.items()]
    canvas.mark_alerts(axes, points, canvas.within(60 / max(len(names), 1), 0.5, 1.0))
    return canvas.alert_handles(alert for _, alert in shown)
