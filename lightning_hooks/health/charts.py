"""Curves over the epochs, and strips of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_hooks.health.html import Markup, percent, tag


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of :func:`chart`.

    Attributes:
        label: What it is.
        values: One per epoch; what is not finite is left out.
        color: A CSS colour.
        dashed: Whether it is dashed.
        top: The upper edge of a band above it.
    """

    label: str
    values: Sequence[float]
    color: str
    dashed: bool = False
    top: Sequence[float] | None = None


def chart(curves: Sequence[Line], epochs: Sequence[int], height: int = 170, log: bool = True) -> Markup:
    """Curves over the epochs, on a logarithmic scale, or a linear one from 0 to 1."""
    known = [
        value
        for curve in curves
        for value in [*curve.values, *(curve.top or ())]
        if math.isfinite(value) and (value > 0 or not log)
    ]
    low, high = _padded(known) if log else (0.0, 1.0)

    def y(value: float) -> float:
        share = (math.log10(value) - low) / (high - low) if log else value
        return round(100 - 100 * min(max(share, 0.0), 1.0), 2)

    def x(place: int) -> float:
        return round(100 * (place + 0.5) / len(epochs), 2)

    drawn: list[Markup] = []
    for curve in curves:
        for stretch in _stretches(curve.values, log):
            points = [f"{x(i)},{y(curve.values[i])}" for i in stretch]
            if len(points) == 1:  # a curve of one epoch would not be seen
                half = 30 / len(epochs)
                points = [f"{round(x(stretch[0]) + side * half, 2)},{y(curve.values[stretch[0]])}" for side in (-1, 1)]
            if curve.top is not None:
                upper = [(i, curve.top[i]) for i in stretch if math.isfinite(curve.top[i])]
                edge = [f"{x(i)},{y(value)}" for i, value in reversed(upper)] if len(stretch) > 1 else []
                drawn.append(
                    tag("polygon", points=" ".join([*points, *edge]), style=f"fill:{curve.color};opacity:.18") if edge else Markup()
                )
            dash = ";stroke-dasharray:5 4" if curve.dashed else ""
            style = f"fill:none;stroke:{curve.color};stroke-width:2;vector-effect:non-scaling-stroke{dash}"
            drawn.append(tag("polyline", points=" ".join(points), style=style))
    whole = range(math.ceil(low), math.floor(high) + 1)
    ticks = [10.0**power for power in whole[:: max(1, -(-len(whole) // 5))]] if log else [0.0, 0.5, 1.0]
    lines = [
        tag("line", x1=0, x2=100, y1=y(t), y2=y(t), style="stroke:var(--line);vector-effect:non-scaling-stroke") for t in ticks
    ]
    texts = [tag("span", f"1e{round(math.log10(t))}" if log else percent(t), style=f"top:{y(t)}%") for t in ticks]
    alt = ", ".join(curve.label for curve in curves) + f" over epochs {epochs[0]} to {epochs[-1]}"
    picture = tag(
        "svg",
        lines,
        drawn,
        viewBox="0 0 100 100",
        preserveAspectRatio="none",
        style=f"height:{height}px",
        role="img",
        aria_label=alt,
    )
    key = tag("ul", [tag("li", tag("i", style=f"background:{curve.color}"), curve.label) for curve in curves], class_="key")
    ends = tag(
        "div", tag("span", f"epoch {epochs[0]}"), tag("span", f"epoch {epochs[-1]}") if len(epochs) > 1 else None, class_="ends"
    )
    return _placed(texts, picture, ends, key)


def _placed(texts: Sequence[Markup], picture: Markup, ends: Markup, key: Markup) -> Markup:
    """A chart's parts in place."""
    return Markup(tag("div", tag("div", texts, class_="ticks"), picture, ends, class_="chart") + key)


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


def _padded(values: Sequence[float]) -> tuple[float, float]:
    """Where a logarithmic scale begins and ends, in decades, with room around the values and a whole decade within."""
    known = [math.log10(min(max(value, 1e-300), 1e300)) for value in values] or [0.0]
    low, high = min(known), max(known)
    if math.ceil(low) > math.floor(high):
        near = round((low + high) / 2)
        low, high = min(low, near), max(high, near)
    room = max(0.08 * (high - low), 0.12)
    return low - room, high + room


def _stretches(values: Sequence[float], log: bool) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for place, value in enumerate(values):
        if math.isfinite(value) and (value > 0 or not log):
            found[-1].append(place)
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]
