"""Lines of numbers on a common scale: the positions of their dots, bands and bars, in percent from the left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_hooks.declare.kinds import gravity
from lightning_hooks.run_report.charts import Scale, Tick, tick_text
from lightning_hooks.run_report.numerals import number, percent

SHOWN_ROWS = 40
"""Of more rows those with an alert come first, and those beyond are folded."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of :func:`rows`."""

    name: str  # of the layer
    value: float  # the position of the dot
    low: float | None = None  # where the band begins; None for no band
    high: float | None = None  # where it ends
    severity: str = ""  # of its most severe alert; empty for none
    note: str = ""  # the text instead of a dot that cannot be drawn
    other: float | None = None  # the value of another run, a second mark; None for none
    shown: str | None = None  # the text at the end of the line; None for the value
    title: str = ""  # what a pointer over the line shows


@dataclass(frozen=True, slots=True)
class Track:
    """A :class:`Row` with its marks in place."""

    row: Row
    band: tuple[float, float] | None  # where its band begins, and how wide it is; None for no band
    dot: float | None  # the position of its dot, or the end of its bar; None where ``note`` is shown instead
    note: str  # why there is no dot
    other: float | None  # the position of the second mark; None for none
    shown: str  # the text at the end of the line


@dataclass(frozen=True, slots=True)
class Rows:
    """Lines on a common scale."""

    what: str  # what the numbers are, for the head
    bars: bool  # whether values are drawn as bars from 0
    decades: int  # parts of the scale
    ticks: list[Tick]  # along the scale
    limits: list[Tick]  # thresholds of rules
    tracks: list[Track]

    @property
    def shown(self) -> list[Track]:
        """The lines that are not folded."""
        return self.tracks[:SHOWN_ROWS]

    @property
    def folded(self) -> list[Track]:
        """Those that are."""
        return self.tracks[SHOWN_ROWS:]


def rows(lines: Sequence[Row], what: str, linear: bool = False, shades: Sequence[float] = (), limits: Sequence[float] = ()) -> Rows:
    """Place lines on a common scale: logarithmic, in whole decades, or linear from 0 to 1 with bars.

    Args:
        lines: From the first to the last.
        what: What the numbers are, for the head.
        linear: Shares from 0 to 1.
        shades: Numbers that the scale must hold next to those of the lines.
        limits: Thresholds of rules, drawn as a line where the scale reaches.
    """
    values = [value for line in lines for value in (line.value, line.high, line.other) if value is not None]
    axis = Scale("share", 0.0, 1.0, (0.0, 0.5, 1.0)) if linear else _decades([*values, *shades])
    show = percent if linear else number

    def place(value: float) -> float:
        return round(100 * axis.place(value), 1)

    def track(line: Row) -> Track:
        band = None
        if line.low is not None and line.high is not None and axis.shows(line.high):
            start = place(line.low) if axis.shows(line.low) else 0.0
            band = start, round(max(place(line.high) - start, 0.0), 1)
        dot = place(line.value) if axis.shows(line.value) else None
        other = place(line.other) if line.other is not None and axis.shows(line.other) else None
        note = line.note or ("zero" if line.value == 0 else "no finite value")
        return Track(line, band, dot, note, other, show(line.value) if line.shown is None else line.shown)

    ticks = [Tick(place(tick), tick_text(tick, axis)) for tick in axis.ticks]
    marks = [Tick(place(limit), show(limit)) for limit in limits if axis.low < limit < axis.high]
    ordered = list(lines)
    if len(ordered) > SHOWN_ROWS:  # a sort keeps the model's order among equals
        ordered.sort(key=lambda line: gravity(line.severity))
    bars = linear and all(line.other is None for line in ordered)
    decades = 10 if linear else round(math.log10(axis.high / axis.low))
    return Rows(what, bars, decades, ticks, marks, [track(line) for line in ordered])


def _decades(values: Iterable[float]) -> Scale:
    """A logarithmic scale of whole decades."""
    logs = [math.log10(min(max(value, 1e-300), 1e300)) for value in values if math.isfinite(value) and value > 0] or [-1.0, 1.0]
    first, last = math.floor(min(logs)), math.ceil(max(logs))
    last = max(last, first + 1)
    ticks = tuple(10.0**power for power in range(first, last + 1, max(1, -(-(last - first) // 5))))
    return Scale("log", 10.0**first, 10.0**last, ticks)
