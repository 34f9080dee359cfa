"""The building blocks of a page: marks, tables, rows on a common scale, heat maps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.health.charts import epoch_axis
from lightning_hooks.health.heat import HeatMap, gradient_css
from lightning_hooks.health.html import Markup, number, percent, tag

SHOWN_ROWS = 40
"""Of more rows those with an alert come first, and those beyond are folded."""
MOST_TITLED_CELLS = 1200
"""Up to so many cells of a heat map have a title each; above, each row has one."""
MARKS = {"failed": "✖", "critical": "✖", "warning": "▲", "info": "●", "healthy": "✔", "unknown": "?"}


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
        title: What a pointer over the line shows.
    """

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    severity: str = ""
    note: str = ""
    other: float | None = None
    shown: str | None = None
    title: str = ""


def rows(
    lines: Sequence[Row], what: str, linear: bool = False, shades: Sequence[float] = (), limits: Sequence[float] = ()
) -> Markup:
    """Draw lines on a common scale: logarithmic, in whole decades, or linear from 0 to 1 with bars.

    Args:
        lines: From the first to the last.
        what: What the numbers are, for the head.
        linear: Shares from 0 to 1.
        shades: Numbers that the scale must hold beside those of the lines.
        limits: Thresholds of rules, drawn as a line where the scale reaches.
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
    low, high = (0.0, 1.0) if linear else (10.0**first, 10.0**last)
    marks = [
        tag("em", style=f"left:{place(limit)}%", title=f"limit of the rule: {percent(limit) if linear else number(limit)}")
        for limit in limits
        if low < limit < high
    ]
    ordered = list(lines)
    if len(ordered) > SHOWN_ROWS:  # a sort keeps the model's order among equals
        ordered.sort(key=lambda line: _ORDER.get(line.severity, len(_ORDER)))
    body = [_row(line, place, linear, marks) for line in ordered]
    more = body[SHOWN_ROWS:]
    folded = tag("details", tag("summary", f"{len(more)} more"), more) if more else None
    return tag("div", head, body[:SHOWN_ROWS], folded, class_="rows", style=f"--decades:{decades}")


_ORDER = {"critical": 0, "warning": 1, "info": 2}


def _row(line: Row, place: Any, linear: bool, limits: Sequence[Markup]) -> Markup:
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
    track = tag("div", inside, list(limits), class_="track")
    number_shown = tag("span", shown, class_="n")
    return tag("div", label, track, number_shown, class_=f"row {line.severity}".strip(), title=line.title or None)


def heat(caption: str, drawn: HeatMap) -> Markup:
    """A heat map with the names of its rows, its epochs, its scale, and a title for each number."""
    height = drawn.rows * 14 if drawn.rows <= 60 else min(max(3 * drawn.rows, 840), 900)
    texts = [
        tag("span", tag("bdi", text), style=f"top:{round(100 * (at + 0.5) / drawn.rows, 2)}%", title=text)
        for at, text in zip(drawn.labels.positions, drawn.labels.texts, strict=True)
    ]
    alt = f"{caption}: {drawn.rows} rows by {drawn.columns} epochs"
    image = tag("img", src=drawn.uri, alt=alt, style=f"height:{height}px")
    titles = tag("svg", _cell_titles(drawn), viewBox=f"0 0 {drawn.columns} {drawn.rows}", preserveAspectRatio="none", class_="over")
    epochs = epoch_axis(drawn.epochs, lambda place: round(100 * (place + 0.5) / drawn.columns, 2))
    scale = [
        tag("div", class_="scale", style=f"background:{gradient_css(drawn.colors)}"),
        tag("div", [tag("span", text) for text in _scale_texts(drawn)], class_="ends"),
    ]
    inside = f" ({drawn.labels.prefix.rstrip('.')})" if drawn.labels.prefix else ""
    right = tag("div", tag("div", image, titles, class_="cells"), epochs, scale)
    body = tag("div", tag("div", texts, class_="names", style=f"height:{height}px"), right, class_="map")
    return tag("figure", tag("figcaption", caption, tag("small", inside)), body, class_="heat")


def _told(drawn: HeatMap, value: float) -> str:
    if not math.isfinite(value):
        return "not measured"
    return f"{value:.3g} times the first" if drawn.relative else number(value) if drawn.log else percent(value)


def _cell_titles(drawn: HeatMap) -> list[Markup]:
    if drawn.rows * drawn.columns <= MOST_TITLED_CELLS:
        return [
            tag(
                "rect",
                tag("title", f"{name}, epoch {epoch}: {_told(drawn, float(drawn.values[y, x]))}"),
                x=x,
                y=y,
                width=1,
                height=1,
            )
            for y, name in enumerate(drawn.names)
            for x, epoch in enumerate(drawn.epochs)
        ]
    last = [_told(drawn, float(value)) for value in drawn.values[:, -1]]
    return [
        tag("rect", tag("title", f"{row}, epoch {drawn.epochs[-1]}: {told}"), x=0, y=y, width=drawn.columns, height=1)
        for y, (row, told) in enumerate(zip(drawn.names, last, strict=True))
    ]


def _scale_texts(drawn: HeatMap) -> list[str]:
    """Numbers at the beginning, at a quarter, in the middle, at three quarters, and at the end of the scale."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    if not drawn.log:
        return [percent(drawn.low + share * (drawn.high - drawn.low)) for share in shares]
    low, high = math.log10(drawn.low), math.log10(drawn.high)
    values = [10 ** (low + share * (high - low)) for share in shares]
    if not drawn.relative:
        return [f"{value:.2g}" for value in values]
    return ["the same" if value == 1 else f"{value:.0e}x" if value >= 100 else f"{value:.2g}x" for value in values]


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
