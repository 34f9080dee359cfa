"""Gradients and updates, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.plots.canvas import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MARKS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Axes,
    Figure,
    alert_handles,
    along_layers,
    decades,
    heading,
    mark,
    nothing,
    plain,
    single,
    style,
)
from lightning_hooks.plots.series import alerts_by_site, check_report, kinds_by_severity
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


def role(name: str) -> str:
    """The role of a layer or parameter: what its name says after the number of its block, or its last part.

    Example:
        >>> [role(name) for name in ("h.3.attn.q.weight", "layer1.0.conv1", "head.bias", "net.4")]
        ['attn.q.weight', 'conv1', 'bias', '']
    """
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[place + 1 :])
    return parts[-1]


def by_role(names: Sequence[str]) -> dict[str, list[int]]:
    """Role to the places of its layers, the roles with most layers first; roles of fewer than three share the name ``other``.

    Where no role has three, there are two: weights and biases.
    """
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found.setdefault(role(name), []).append(place)
    if not any(len(places) >= ALIKE for places in found.values()):
        found = {}
        for place, name in enumerate(names):
            found.setdefault("bias" if name.rpartition(".")[2] == "bias" else "", []).append(place)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))
    lines = {what: places for what, places in found.items() if len(places) >= ALIKE}
    rest = sorted(place for what, places in found.items() if what not in lines for place in places)
    ordered = dict(sorted(lines.items(), key=lambda item: -len(item[1])))
    return {**ordered, OTHER: rest} if rest else ordered


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
    title = f"Gradient flow, {report.when}"
    if not table:
        return nothing(title, f"No gradient arrived at any of the {of}.")
    names, stats = list(table), list(table.values())
    rms = np.array([entry.rms for entry in stats], dtype=float)
    if of == "modules":
        low = np.abs([entry.mean for entry in stats])
        high = np.maximum(np.abs([entry.min for entry in stats]), np.abs([entry.max for entry in stats]))
        band = "|mean| to largest |value|"
        line = "RMS of the loss's gradient at each module's output; the loss is to the right"
    else:
        high = rms * _ratio([entry.norm_max for entry in stats], [entry.norm for entry in stats])
        low = rms
        band = "RMS to that of the largest step"
        line = "RMS of each parameter's gradient at the optimizer step, before clipping"
    if report.silent and of == "modules":
        line += f"; no gradient arrived at {len(report.silent)} more"
    if not (np.isfinite(rms) & (rms > 0)).any():
        line = f"No gradient is finite and above zero at any of the {len(names)} {of}"
    figure, axes = single(float(np.clip(1.8 + 0.2 * len(names), 6.4, 16.0)), 4.6 if len(names) <= 8 else 5.2)
    heading(axes, title, line, figure.get_figwidth() - 0.8)
    x = np.arange(len(names))
    shown = _positive(rms)
    decades(axes, np.concatenate([values[_positive(values)] for values in (rms, high)]))
    bottom, top = axes.get_ylim()
    floor = np.where(_positive(low), np.clip(low, bottom, top), bottom)
    roles = by_role(names)
    if len(roles) == 1:
        _band(axes, x, shown, floor, np.clip(np.where(shown, high, np.nan), bottom, top))
    handles = _role_lines(axes, roles, np.where(shown, rms, np.nan), len(names))
    handles += [_patch(SKY, band)] if len(roles) == 1 else []
    handles += _foot(axes, x, rms, "gradient")
    handles += _marks(axes, names, rms, report.alerts, of)
    axes.set_ylabel("gradient (loss per unit)" if of == "modules" else "gradient (loss per unit of weight)")
    along_layers(figure, axes, names, of[:-1], handles)
    return figure


def _band(axes: Axes, x: np.ndarray, shown: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    alone = shown & ~np.append(shown[1:], False) & ~np.append(False, shown[:-1])
    axes.fill_between(x, low, high, where=shown, color=SKY, alpha=0.3, lw=0)
    axes.vlines(x[alone], low[alone], high[alone], color=SKY, alpha=0.45, lw=3)


def _role_lines(axes: Axes, roles: Mapping[str, Sequence[int]], values: np.ndarray, layers: int) -> list[Any]:
    """A line for each role along the model: a line through layers of different roles would zigzag without meaning."""
    handles = []
    named = [role for role in roles if role != OTHER]
    bases = list(dict.fromkeys(_base(role) for role in named))
    for role in named:
        cycle, number = divmod(bases.index(_base(role)), len(COLORS))
        color, dashes = COLORS[number], DASHES[role.rpartition(".")[2] == "bias"][min(cycle, 1)]
        if cycle > 1:  # more than can be distinguished
            color = GREY
        at = np.array(roles[role])
        (line,) = axes.plot(at, values[at], color=color, ls=dashes, marker="o", ms=_dot(layers), lw=1.3, zorder=3)
        line.set_label(
            plain(shortened(role or ("RMS" if len(roles) == 1 else "weights" if "bias" in roles else "numbered layers")))
        )
        if cycle <= 1:
            handles.append(line)
    if OTHER in roles:
        at = np.array(roles[OTHER])
        (line,) = axes.plot(at, values[at], color=INK, ls="", marker="D", ms=_dot(layers), zorder=3)
        line.set_label("single layers")
        handles.append(line)
    return handles


def _base(role: str) -> str:
    """The layer's role, of its weight and its bias alike."""
    return role.removesuffix("weight").removesuffix("bias").removesuffix(".")


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
    measured = {name: stats.update_ratio for name, stats in report.parameters.items() if stats.update_ratio is not None}
    title = f"Update ratios, {report.when}"
    if not measured:
        return nothing(title, "No update was measured: every weight is zero, or no step was taken.")
    names, values = list(measured), np.array(list(measured.values()), dtype=float)
    figure, axes = single(float(np.clip(1.8 + 0.2 * len(names), 6.4, 16.0)), 4.6 if len(names) <= 8 else 5.2)
    left_out = len(report.parameters) - len(names)
    heading(axes, title, "‖update‖ / ‖weight‖ per optimizer step" + (f"; {left_out} not measured" if left_out else ""))
    x = np.arange(len(names))
    shown = _positive(values)
    decades(axes, np.concatenate([values[shown], np.array(HEALTHY_UPDATES)]))
    axes.axhspan(*HEALTHY_UPDATES, color=GREEN, alpha=0.1, lw=0)
    axes.axhline(1e-3, color=GREEN, lw=1.0)
    matrix = np.array([name.rpartition(".")[2] != "bias" for name in names])
    handles = []
    for chosen, text, face in ((matrix, "weight", BLUE), (~matrix, "bias", "white")):
        if chosen.any():
            dots = axes.scatter(
                x[chosen & shown], values[chosen & shown], s=_dot(len(names), 5.5) ** 2, color=face, ec=BLUE, zorder=3
            )
            dots.set_label(text)
            handles.append(dots)
    handles += [_patch(GREEN, "a decade around 1e-3", 0.25)]
    handles += _foot(axes, x, values, "update")
    handles += _marks(axes, names, values, [alert for alert in report.alerts if alert.site in measured], "parameters")
    axes.set_ylabel("update / weight, no unit")
    along_layers(figure, axes, names, "parameter", handles)
    return figure


def _ratio(high: Sequence[float], low: Sequence[float]) -> np.ndarray:
    above, below = np.array(high, dtype=float), np.array(low, dtype=float)
    ratio = np.ones_like(above)
    np.divide(above, below, out=ratio, where=_positive(below) & np.isfinite(above))
    return ratio


def _positive(values: np.ndarray) -> np.ndarray:
    positive: np.ndarray = np.isfinite(values) & (values > 0)
    return positive


def _dot(layers: int, largest: float = 4.5) -> float:
    return float(np.clip(largest * 60 / max(layers, 1), 1.6, largest))


def _patch(color: str, text: str, alpha: float = 0.3) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=color, alpha=alpha, lw=0, label=text)


def _foot(axes: Axes, x: np.ndarray, values: np.ndarray, what: str) -> list[Any]:
    """Mark at the bottom of a log axis what it cannot show: zero, and what is not finite."""
    handles = []
    for chosen, marker, text in ((values == 0, "v", f"{what} is zero"), (~np.isfinite(values), "x", "no finite value")):
        if chosen.any():
            (dots,) = axes.plot(
                x[chosen], np.full(int(chosen.sum()), 0.0), marker, ls="", color=INK if marker == "x" else GREY, ms=5,
                transform=axes.get_xaxis_transform(), clip_on=False, zorder=5, label=text,
            )  # fmt: skip
            handles.append(dots)
    return handles


def _marks(axes: Axes, names: Sequence[str], values: np.ndarray, alerts: Sequence[Alert], of: str) -> list[Any]:
    """Mark what has an alert; a parameter's alert marks its module where modules are drawn."""
    place = {name: index for index, name in enumerate(names)}
    found: dict[str, list[Alert]] = {}
    for site, at in alerts_by_site(alerts).items():
        where = site if site in place or of == "parameters" else site.rpartition(".")[0]
        if where in place:
            found.setdefault(where, []).extend(at)
    size = float(np.clip(60 / max(len(names), 1), 0.5, 1.0))
    for severity in MARKS:
        rows = [place[site] for site, at in found.items() if at[0].severity == severity]
        for on_axis in (True, False):
            some = np.array([row for row in rows if _positive(values[row : row + 1])[0] == on_axis], dtype=int)
            y = values[some] if on_axis else np.full(some.size, 0.035)
            transform = axes.transData if on_axis else axes.get_xaxis_transform()
            if some.size:
                mark(axes, severity, some, y, size, transform=transform, clip_on=False)
    shown = [alert for at in found.values() for alert in at]
    return alert_handles(kinds_by_severity(shown))
