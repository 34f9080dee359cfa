"""The building blocks of a page: marks, tables, rows on a common scale, heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.health.heat import HeatMap, gradient_css
from lightning_hooks.health.html import Markup, number, percent, tag

MARKS = {"critical": "✖", "warning": "▲", "info": "●", "healthy": "✔", "unknown": "?"}


def mark(severity: str) -> Markup:
    """The sign of a severity: a shape as well as a colour."""
    return tag("span", MARKS.get(severity, "●"), class_=f"mark {severity}", role="img", aria_label=severity)


def name(text: str) -> Markup:
    """The name of a layer."""
    return tag("span", text, class_="name")


def card(*children: Any, kind: str = "") -> Markup:
    """A framed part."""
    return tag("div", *children, class_=f"card {kind}".strip())


def facts(pairs: Iterable[tuple[str, Any]]) -> Markup:
    """Small numbers with what they are of."""
    return tag("div", [tag("div", tag("b", value), tag("span", what)) for what, value in pairs], class_="facts")


def table(header: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Iterable[int] = ()) -> Markup:
    """A table that scrolls sideways where it must; ``numeric`` columns stand to the right."""
    right = set(numeric)

    def cells(element: str, values: Sequence[Any]) -> Markup:
        return tag("tr", [tag(element, value, class_="n" if place in right else None) for place, value in enumerate(values)])

    body = [cells("td", row) for row in rows]
    return tag("div", tag("table", tag("thead", cells("th", header)), tag("tbody", body)), class_="wide")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of :func:`rows`.

    Attributes:
        name: Of the layer.
        value: Where the dot stands.
        low: Where the band begins; None for no band.
        high: Where it ends.
        severity: Of its gravest alert; empty for none.
        note: What is said in place of a dot that cannot be drawn.
        other: Where a second mark stands, that of another run; None for none.
        shown: What stands at the end of the line; None for the value.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    severity: str = ""
    note: str = ""
    other: float | None = None
    shown: str | None = None


def rows(lines: Sequence[Row], what: str, linear: bool = False, shades: Sequence[float] = ()) -> Markup:
    """Draw lines on a common scale: logarithmic, in whole decades, or linear from 0 to 1 with bars.

    Args:
        lines: From the first to the last.
        what: What the numbers are, for the head.
        linear: Shares from 0 to 1.
        shades: Numbers that the scale must hold beside those of the lines.
    """
    values = [value for line in lines for value in (line.value, line.high, line.other) if value is not None and _drawable(value)]
    first, last = _decades([*values, *shades]) if not linear else (0, 1)
    decades = 10 if linear else last - first

    def place(value: float) -> float:
        share = value if linear else (math.log10(value) - first) / (last - first)
        return round(100 * min(max(share, 0.0), 1.0), 1)

    ticks = [0.0, 0.5, 1.0] if linear else [10.0**power for power in range(first, last + 1, max(1, -(-(last - first) // 5)))]
    axis = [
        tag("span", percent(tick) if linear else f"1e{round(math.log10(tick))}", style=f"left:{place(tick)}%") for tick in ticks
    ]
    head = tag(
        "div", tag("span", class_="name"), tag("div", axis, class_="track"), tag("span", what, class_="n"), class_="row axis"
    )
    body = [_row(line, place, linear) for line in lines]
    return tag("div", head, body, class_="rows scroll", style=f"--decades:{decades}", tabindex="0")


def _row(line: Row, place: Any, linear: bool) -> Markup:
    inside: list[Markup] = []
    if line.low is not None and line.high is not None and _drawable(line.high):
        start = place(line.low) if _drawable(line.low) else 0.0
        inside.append(tag("i", style=f"left:{start}%;width:{round(max(place(line.high) - start, 0.0), 1)}%"))
    drawable = math.isfinite(line.value) if linear else _drawable(line.value)
    if drawable and linear:
        style = f"width:{place(line.value)}%" if line.other is None else f"left:{place(line.value)}%"
        inside.append(tag("b", class_="bar" if line.other is None else None, style=style))
    elif drawable:
        inside.append(tag("b", style=f"left:{place(line.value)}%"))
    else:
        inside.append(tag("s", line.note or ("zero" if line.value == 0 else "no finite value")))
    if line.other is not None and (math.isfinite(line.other) if linear else _drawable(line.other)):
        inside.append(tag("u", style=f"left:{place(line.other)}%"))
    shown = line.shown if line.shown is not None else percent(line.value) if linear else number(line.value)
    sign = [mark(line.severity), " "] if line.severity in ("critical", "warning", "info") else []
    label = tag("span", sign, line.name, class_="name")
    return tag(
        "div", label, tag("div", inside, class_="track"), tag("span", shown, class_="n"), class_=f"row {line.severity}".strip()
    )


def heat(caption: str, drawn: HeatMap, epochs: Sequence[int]) -> Markup:
    """A heat map with the names of its rows, its epochs, and its scale."""
    height = drawn.rows * 14 if drawn.rows <= 60 else min(max(3 * drawn.rows, 840), 900)
    texts = [
        tag("span", tag("bdi", text), style=f"top:{round(100 * (at + 0.5) / drawn.rows, 2)}%", title=text)
        for at, text in zip(drawn.labels.positions, drawn.labels.texts, strict=True)
    ]
    ends = [tag("span", f"epoch {epochs[0]}"), tag("span", f"epoch {epochs[-1]}") if len(epochs) > 1 else None]
    low, high = (number(drawn.low), number(drawn.high)) if drawn.log else (percent(drawn.low), percent(drawn.high))
    alt = f"{caption}: {drawn.rows} rows by {drawn.columns} epochs"
    image = tag("img", src=drawn.uri, alt=alt, style=f"height:{height}px")
    right = [image, tag("div", ends, class_="ends"), tag("div", class_="scale", style=f"background:{gradient_css()}")]
    right.append(tag("div", tag("span", low), tag("span", "log scale" if drawn.log else ""), tag("span", high), class_="ends"))
    inside = f" ({drawn.labels.prefix.rstrip('.')})" if drawn.labels.prefix else ""
    body = tag("div", tag("div", texts, class_="names", style=f"height:{height}px"), tag("div", right), class_="map")
    return tag("figure", tag("figcaption", caption, tag("small", inside)), body, class_="heat")


def chosen(names: Sequence[str], severities: Mapping[str, str], most: int) -> list[str]:
    """Which of too many names are drawn: all that have an alert, as far as there is room, and every k-th of the others."""
    if len(names) <= most:
        return list(names)
    ill = [name for name in names if severities.get(name) in ("critical", "warning")][:most]
    well = [name for name in names if name not in set(ill)]
    room = max(most - len(ill), most // 4)
    kept = {*ill, *well[:: max(1, -(-len(well) // room))]}
    return [name for name in names if name in kept]


def _drawable(value: float) -> bool:
    return math.isfinite(value) and value > 0


def _decades(values: Iterable[float]) -> tuple[int, int]:
    known = [min(max(value, 1e-300), 1e300) for value in values if _drawable(value)]
    if not known:
        return -1, 1
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return (first, last) if last > first else (first, first + 1)
