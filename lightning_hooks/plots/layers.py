"""Layers from left to right on a log axis: gradients, updates, and the residual stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.plots.canvas import (
    BLUE,
    GREEN,
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
    name_layers,
    nothing,
    plain,
    positive,
    single,
    style,
    within,
)
from lightning_hooks.plots.series import check_report
from lightning_hooks.trackers.console import shortened

HEALTHY_UPDATES = (1e-4, 1e-2)
"""Ratios of update to weight around the 1e-3 that Karpathy (2022) aims at, a decade to each side."""

COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, INK)
DASHES: tuple[tuple[Any, Any], ...] = (("-", "--"), (":", (0, (1, 4))))
"""Of weights and modules, and of biases, which share the colour of their weight: the first seven roles, and the next."""

OTHER = "other"
"""The role of layers that are like no two others."""
ALIKE = 3
"""So many layers of one role make a line of their own."""

STREAM = (
    ("rms", "all values", BLUE, "-"),
    ("channel_rms", "largest channel", ORANGE, "--"),
    ("median_channel_rms", "median channel", GREY, ":"),
)
"""The statistics of the residual stream that are drawn: name, text, colour and dashes."""
OF_STREAM = ("activation_outliers", "residual_growth")
"""The kinds of alerts that are marked there."""


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


@style()
def gradient_flow(report: GradientFlowReport, *, of: Literal["modules", "parameters"] = "modules") -> Figure:
    """Draw how large the gradient is at each layer, on a log axis, with alerts marked.

    Each role of layers (what its name says after the number of its block; weights and biases differ) has its own line: queries and
    normalisations differ a hundredfold in healthy runs. Drawn is the root mean square per element, comparable between layers of
    any size. Where there is one role only, a band shows the spread. For modules it reaches from the mean's magnitude up to the
    largest single value, for parameters from the mean norm to the largest, per root of the elements. A gradient that is zero, or
    has no finite value, is drawn at the bottom of the axis.

    Args:
        report: One window's.
        of: ``modules`` (the gradient at their outputs) or ``parameters`` (``.grad`` at the optimizer step).

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a GradientFlowReport.
        ValueError: If ``of`` is neither.
    """
    check_report(report, GradientFlowReport, "GradientFlowMonitor")
    if of not in ("modules", "parameters"):
        raise ValueError(f"of must be 'modules' or 'parameters'; got {of!r}.")
    table: Mapping[str, Any] = report.modules if of == "modules" else report.parameters
    title, names = f"Gradient flow, {report.when}", list(table)
    if not table:
        return nothing(title, f"No gradient arrived at any of the {of}.")
    rms = _numbers(table, "rms")
    if of == "modules":
        low, high = abs(_numbers(table, "mean")), np.maximum(abs(_numbers(table, "min")), abs(_numbers(table, "max")))
        band, unit = "|mean| to largest |value|", "gradient (loss per unit)"
        line = "RMS of the loss's gradient at each module's output; the loss is to the right"
        line += f"; no gradient arrived at {len(report.silent)} more" if report.silent else ""
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = _numbers(table, "norm_max") / _numbers(table, "norm")
        low, high = rms, rms * np.where(np.isfinite(ratio), ratio, 1.0)
        band, unit = "RMS to that of the largest step", "gradient (loss per unit of weight)"
        line = "RMS of each parameter's gradient at the optimizer step, before clipping"
    shown = positive(rms)
    if not shown.any():
        line = f"No gradient is finite and above zero at any of the {len(names)} {of}"
    figure, axes = _sheet(names, title, line)
    decades(axes, np.concatenate([rms, high]))
    roles = by_role(names)
    handles = _band(axes, shown, low, high, band) if len(roles) == 1 else []
    handles = _role_lines(axes, roles, np.where(shown, rms, np.nan), len(names)) + handles
    handles += _foot(axes, rms, "gradient")
    handles += _marks(axes, names, rms, report.alerts)
    axes.set_ylabel(unit)
    return _ended(figure, axes, names, of[:-1], handles)


@style()
def update_ratios(report: GradientFlowReport) -> Figure:
    """Draw the size of each parameter's updates relative to its weights, on a log axis, with alerts marked.

    Shaded is a decade to each side of 1e-3, where healthy runs often are (Karpathy 2022). Far below, a parameter hardly
    learns; far above, it changes erratically.

    Args:
        report: One window's.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a GradientFlowReport.
    """
    check_report(report, GradientFlowReport, "GradientFlowMonitor")
    measured = {name: stats for name, stats in report.parameters.items() if stats.update_ratio is not None}
    title = f"Update ratios, {report.when}"
    if not measured:
        return nothing(title, "No update was measured: every weight is zero, or no step was taken.")
    names, values = list(measured), _numbers(measured, "update_ratio")
    left_out = len(report.parameters) - len(names)
    figure, axes = _sheet(names, title, "‖update‖ / ‖weight‖ per optimizer step" + f"; {left_out} not measured" * bool(left_out))
    decades(axes, np.concatenate([values, HEALTHY_UPDATES]))
    axes.axhspan(*HEALTHY_UPDATES, color=GREEN, alpha=0.1, lw=0)
    axes.axhline(1e-3, color=GREEN, lw=1.0)
    bias = np.array([name.rpartition(".")[2] == "bias" for name in names])
    handles: list[Any] = []
    for chosen, text, face in ((~bias, "weight", BLUE), (bias, "bias", "white")):
        if chosen.any():
            at = np.flatnonzero(chosen & positive(values))
            handles.append(axes.scatter(at, values[at], s=_dot(len(names), 5.5) ** 2, color=face, ec=BLUE, zorder=3, label=text))
    handles += [_patch(GREEN, "a decade around 1e-3", 0.25)]
    handles += _foot(axes, values, "update")
    handles += _marks(axes, names, values, report.alerts)
    axes.set_ylabel("update / weight, no unit")
    return _ended(figure, axes, names, "parameter", handles)


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
    title, names = f"Residual stream, {report.when}", list(report.residual)
    if not names:
        return nothing(title, "The model is no stack of blocks that keep the shape of their input.")
    values = {stat: _numbers(report.residual, stat) for stat, *_ in STREAM}
    known = np.concatenate(list(values.values()))
    if not positive(known).any():
        return nothing(title, f"The output of none of the {len(names)} blocks has a finite value above zero.")
    figure, axes = _sheet(names, title, "RMS of what each block hands on to the next", per_layer=0.25)
    decades(axes, known)
    stacks = [list(stack) for _, stack in groupby(range(len(names)), lambda at: report.residual[names[at]].stream)]
    handles: list[Any] = []
    for stat, text, color, dashes in STREAM:
        y = np.where(positive(values[stat]), values[stat], np.nan)
        drawn = [axes.plot(at, y[at], color=color, ls=dashes, marker="o", ms=3.5, lw=1.3)[0] for at in stacks]
        drawn[-1].set_label(text)
        handles.append(drawn[-1])
    handles += _marks(axes, names, values["rms"], [alert for alert in report.alerts if alert.kind in OF_STREAM])
    axes.set_ylabel("root mean square")
    return _ended(figure, axes, names, "block", handles)


def _numbers(table: Mapping[str, Any], stat: str) -> np.ndarray:
    return np.array([getattr(stats, stat) for stats in table.values()], dtype=float)


def _sheet(names: Sequence[str], title: str, line: str, per_layer: float = 0.2) -> tuple[Figure, Axes]:
    """An empty figure with room for so many layers."""
    figure, axes = single(within(1.8 + per_layer * len(names), 6.4, 16.0), 4.6 if len(names) <= 8 else 5.2)
    heading(axes, title, line, figure.get_figwidth() - 0.8)
    return figure, axes


def _ended(figure: Figure, axes: Axes, names: Sequence[str], what: str, handles: Sequence[Any]) -> Figure:
    """The figure with its layers' names, a grid, and the legend."""
    axes.grid(axis="y")
    axes.set_xlim(-0.6, len(names) - 0.4)
    name_layers(axes, names, "x", what)
    legend(figure, handles)
    return figure


def _band(axes: Axes, shown: np.ndarray, low: np.ndarray, high: np.ndarray, text: str) -> list[Any]:
    bottom, top = axes.get_ylim()
    low = np.where(positive(low), within(low, bottom, top), bottom)
    high = within(np.where(shown, high, np.nan), bottom, top)
    alone = np.flatnonzero(shown & ~np.append(shown[1:], False) & ~np.append(False, shown[:-1]))
    axes.fill_between(np.arange(len(shown)), low, high, where=shown, color=SKY, alpha=0.3, lw=0)
    axes.vlines(alone, low[alone], high[alone], color=SKY, alpha=0.45, lw=3)
    return [_patch(SKY, text)]


def _role_lines(axes: Axes, roles: Mapping[str, Sequence[int]], values: np.ndarray, layers: int) -> list[Any]:
    """A line for each role along the model: a line through layers of different roles would zigzag without meaning."""
    handles = []
    look: dict[str, Any]
    bases = list(dict.fromkeys(_base(role) for role in roles if role != OTHER))
    unnamed = "RMS" if len(roles) == 1 else "weights" if "bias" in roles else "numbered layers"
    for role, at in roles.items():
        if role == OTHER:
            look, text, cycle = {"color": INK, "ls": "", "marker": "D"}, "single layers", 0
        else:
            cycle, number = divmod(bases.index(_base(role)), len(COLORS))
            dashes = DASHES[role.rpartition(".")[2] == "bias"][min(cycle, 1)]
            # More than two cycles of colours cannot be distinguished.
            look, text = {"color": COLORS[number] if cycle <= 1 else GREY, "ls": dashes, "marker": "o", "lw": 1.3}, role or unnamed
        (line,) = axes.plot(at, values[at], ms=_dot(layers), zorder=3, label=plain(shortened(text)), **look)
        handles += [line] * (cycle <= 1)
    return handles


def _base(role: str) -> str:
    """The layer's role, of its weight and its bias alike."""
    return role.removesuffix("weight").removesuffix("bias").removesuffix(".")


def _dot(layers: int, largest: float = 4.5) -> float:
    return within(largest * 60 / max(layers, 1), 1.6, largest)


def _patch(color: str, text: str, alpha: float = 0.3) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color, alpha=alpha, lw=0, label=text)


def _foot(axes: Axes, values: np.ndarray, what: str) -> list[Any]:
    """Mark at the bottom of a log axis what it cannot show: zero, and what is not finite."""
    handles = []
    look: dict[str, Any] = {"ls": "", "ms": 5, "transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
    for chosen, marker, color, text in (
        (values == 0, "v", GREY, f"{what} is zero"),
        (~np.isfinite(values), "x", INK, "no finite value"),
    ):
        if chosen.any():
            handles += axes.plot(np.flatnonzero(chosen), np.zeros(chosen.sum()), marker, color=color, label=text, **look)
    return handles


def _marks(axes: Axes, names: Sequence[str], values: np.ndarray, alerts: Sequence[Alert]) -> list[Any]:
    """Mark what has an alert, each with its most severe one; a parameter's alert marks its module where modules are drawn."""
    places = {name: place for place, name in enumerate(names)}
    at = [(places.get(alert.site, places.get(alert.site.rpartition(".")[0])), alert) for alert in alerts]
    shown = [(place, alert) for place, alert in at if place is not None]
    worst = {place: alert.severity for place, alert in sorted(shown, key=lambda found: -gravity(found[1].severity))}
    points = [(place, values[place] if positive(values[place]) else np.nan, severity) for place, severity in worst.items()]
    mark_alerts(axes, points, within(60 / max(len(names), 1), 0.5, 1.0))
    return alert_handles(alert for _, alert in shown)
