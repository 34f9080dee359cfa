"""Curves over the epochs, and strips of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from lightning_hooks.health.html import Markup, number, percent, tag
from lightning_hooks.health.scale import Kind, Scale, numbered, scale

MOST_MARKED = 40
"""Up to so many epochs each point of a curve has a mark."""


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of :func:`chart`.

    Attributes:
        label: What it is.
        values: One per epoch; what is not finite is left out.
        color: A CSS colour.
        dashed: Whether it is dashed, without marks, from edge to edge if all its values are the same: a threshold.
        top: The upper edge of a band above it.
    """

    label: str
    values: Sequence[float]
    color: str
    dashed: bool = False
    top: Sequence[float] | None = None


def chart(curves: Sequence[Line], epochs: Sequence[int], height: int = 170, kind: Kind = "log") -> Markup:
    """Draw curves over the epochs; each epoch has a title with its numbers.

    Args:
        curves: At least one.
        epochs: Where their values stand.
        height: In pixels.
        kind: Of the scale.
    """
    axis = scale((value for curve in curves for value in [*curve.values, *(curve.top or ())]), kind)
    at = _Places(len(epochs), axis)
    lines = [_horizontal(at.y(tick), "stroke:var(--line)") for tick in axis.ticks]
    drawn = [part for curve in curves for part in _curve(curve, at)]
    texts = [tag("span", tick_text(tick, axis), style=f"top:{at.y(tick)}%") for tick in axis.ticks]
    picture = tag(
        "svg", lines, drawn, _titles(curves, epochs, at, kind), viewBox="0 0 100 100", preserveAspectRatio="none",
        style=f"height:{height}px", role="img",
        aria_label=", ".join(curve.label for curve in curves) + f" over epochs {epochs[0]} to {epochs[-1]}",
    )  # fmt: skip
    key = tag("ul", [tag("li", tag("i", style=f"background:{curve.color}"), curve.label) for curve in curves], class_="key")
    return Markup(tag("div", tag("div", texts, class_="ticks"), picture, epoch_axis(epochs, at.x), class_="chart") + key)


def epoch_axis(epochs: Sequence[int], x: Callable[[int], float]) -> Markup:
    """The numbers of epochs below what stands at ``x(place)`` percent."""
    shown = [
        tag("span", f"epoch {epochs[place]}" if place == 0 else str(epochs[place]), style=f"left:{x(place)}%")
        for place in numbered(len(epochs))
    ]
    return tag("div", shown, class_=f"epochs{' alone' if len(epochs) == 1 else ''}")


def tick_text(tick: float, axis: Scale) -> str:
    """A number along an axis: a power of ten as ``1e-3`` where all are, else in full."""
    if axis.kind == "share":
        return percent(tick)
    powers = axis.kind == "log" and all(math.isclose(one, 10.0 ** round(math.log10(one))) for one in axis.ticks)
    return f"1e{round(math.log10(tick))}" if powers else f"{tick:.6g}"


class _Places:
    """Where epochs and values stand, in percent from the left and from the top."""

    def __init__(self, count: int, axis: Scale) -> None:
        self.count, self.axis = count, axis

    def x(self, place: int) -> float:
        return 50.0 if self.count == 1 else round(100 * place / (self.count - 1), 2)

    def y(self, value: float) -> float:
        return round(100 - 100 * self.axis.place(value), 2)


def _horizontal(y: float, style: str) -> Markup:
    return tag("line", x1=0, x2=100, y1=y, y2=y, style=f"{style};vector-effect:non-scaling-stroke")


def _curve(curve: Line, at: _Places) -> list[Markup]:
    known = [value for value in curve.values if at.axis.shows(value)]
    if curve.dashed and known and min(known) == max(known):
        return [_horizontal(at.y(known[0]), f"stroke:{curve.color};stroke-width:1.5;stroke-dasharray:5 4")]
    parts: list[Markup] = []
    marked = at.count <= MOST_MARKED and not curve.dashed
    for stretch in _stretches(curve.values, at.axis):
        points = [f"{at.x(i)},{at.y(curve.values[i])}" for i in stretch]
        parts += _band(curve, stretch, points, at)
        dash = ";stroke-dasharray:5 4" if curve.dashed else ""
        style = f"fill:none;stroke:{curve.color};stroke-width:2;vector-effect:non-scaling-stroke{dash}"
        if len(points) > 1:
            parts.append(tag("polyline", points=" ".join(points), style=style))
        parts += [_dot(point, curve.color) for point in points] if marked or len(points) == 1 else []
    return parts


def _band(curve: Line, stretch: Sequence[int], points: Sequence[str], at: _Places) -> list[Markup]:
    if curve.top is None:
        return []
    upper = [f"{at.x(i)},{at.y(curve.top[i])}" for i in reversed(stretch) if math.isfinite(curve.top[i])]
    if not upper:
        return []
    if len(stretch) == 1:  # a band of no width: a bar
        style = f"fill:none;stroke:{curve.color};opacity:.3;stroke-width:8;vector-effect:non-scaling-stroke"
        return [tag("polyline", points=f"{points[0]} {upper[0]}", style=style)]
    return [tag("polygon", points=" ".join([*points, *upper]), style=f"fill:{curve.color};opacity:.18")]


def _dot(point: str, color: str) -> Markup:
    """A line of no length with round ends: the picture is stretched, and a circle would be an ellipse."""
    style = f"fill:none;stroke:{color};stroke-width:7;stroke-linecap:round;vector-effect:non-scaling-stroke"
    return tag("polyline", points=f"{point} {point}", style=style)


def _titles(curves: Sequence[Line], epochs: Sequence[int], at: _Places, kind: Kind) -> list[Markup]:
    """What a pointer over an epoch shows: its number and every curve's value."""
    wide = 100 / max(at.count - 1, 1)
    told = percent if kind == "share" else number
    parts = []
    for place, epoch in enumerate(epochs):
        values = "".join(f"; {curve.label}: {told(curve.values[place])}" for curve in curves)
        left, right = max(at.x(place) - wide / 2, 0.0), min(at.x(place) + wide / 2, 100.0)
        parts.append(
            tag("rect", tag("title", f"epoch {epoch}{values}"), x=round(left, 2), y=0, width=round(right - left, 2), height=100,
                class_="over")
        )  # fmt: skip
    return parts


def strip(active: Iterable[int], epochs: Sequence[int], color: str) -> Markup:
    """A strip of all epochs on which some are marked."""
    place = {epoch: index for index, epoch in enumerate(epochs)}
    blocks: list[list[int]] = []
    for index in sorted(place[epoch] for epoch in active if epoch in place):
        if blocks and index == blocks[-1][1]:
            blocks[-1][1] += 1
        else:
            blocks.append([index, index + 1])
    bars = [tag("rect", x=start, y=0, width=stop - start, height=1, style=f"fill:{color}") for start, stop in blocks]
    return tag("svg", bars, viewBox=f"0 0 {len(epochs)} 1", preserveAspectRatio="none", class_="strip", aria_hidden="true")


def _stretches(values: Sequence[float], axis: Scale) -> list[list[int]]:
    """The places of values that can be shown, in runs without a gap."""
    found: list[list[int]] = [[]]
    for place, value in enumerate(values):
        if axis.shows(value):
            found[-1].append(place)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]
