"""Lines of numbers on a common scale: where their dots, bands and bars stand, in percent from the left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_hooks.reports.kinds import gravity
from lightning_hooks.run_report.charts import Tick
from lightning_hooks.run_report.numerals import number, percent

SHOWN_ROWS = 40
"""Of more rows those with an alert come first, and those beyond are folded."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of :func:`rows`."""

    name: str  # of the layer
    value: float  # where the dot stands
    low: float | None = None  # where the band begins; None for no band
    high: float | None = None  # where it ends
    severity: str = ""  # of its gravest alert; empty for none
    note: str = ""  # what is said in place of a dot that cannot be drawn
    other: float | None = None  # where a second mark stands, that of another run; None for none
    shown: str | None = None  # what stands at the end of the line; None for the value
    title: str = ""  # what a pointer over the line shows


@dataclass(frozen=True, slots=True)
class Track:
    """A :class:`Row` with its marks in place."""

    row: Row
    band: tuple[float, float] | None  # where its band begins, and how wide it is; None for no band
    dot: float | None  # where its dot stands, or its bar ends; None where ``note`` stands instead
    note: str  # why there is no dot
    other: float | None  # where the second mark stands; None for none
    shown: str  # what stands at the end of the line


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
    first, last = 0, 1
    if not linear:
        values = [value for line in lines for value in (line.value, line.high, line.other) if value is not None]
        first, last = _decades([*values, *shades])
    show = percent if linear else number

    def drawable(value: float | None) -> bool:
        return value is not None and math.isfinite(value) and (linear or value > 0)

    def place(value: float) -> float:
        share = value if linear else (math.log10(value) - first) / (last - first)
        return round(100 * min(max(share, 0.0), 1.0), 1)

    def track(line: Row) -> Track:
        band = None
        if line.low is not None and line.high is not None and drawable(line.high):
            start = place(line.low) if drawable(line.low) else 0.0
            band = start, round(max(place(line.high) - start, 0.0), 1)
        dot = place(line.value) if drawable(line.value) else None
        other = place(line.other) if line.other is not None and drawable(line.other) else None
        note = line.note or ("zero" if line.value == 0 else "no finite value")
        return Track(line, band, dot, note, other, show(line.value) if line.shown is None else line.shown)

    powers = range(first, last + 1, max(1, -(-(last - first) // 5)))
    ticks = [Tick(place(10.0**power), f"1e{power}") for power in powers]
    if linear:
        ticks = [Tick(place(share), percent(share)) for share in (0.0, 0.5, 1.0)]
    low, high = (0.0, 1.0) if linear else (10.0**first, 10.0**last)
    marks = [Tick(place(limit), show(limit)) for limit in limits if low < limit < high]
    ordered = list(lines)
    if len(ordered) > SHOWN_ROWS:  # a sort keeps the model's order among equals
        ordered.sort(key=lambda line: gravity(line.severity))
    bars = linear and all(line.other is None for line in ordered)
    return Rows(what, bars, 10 if linear else last - first, ticks, marks, [track(line) for line in ordered])


def _decades(values: Iterable[float]) -> tuple[int, int]:
    known = [min(max(value, 1e-300), 1e300) for value in values if math.isfinite(value) and value > 0]
    if not known:
        return -1, 1
    first, last = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    return (first, last) if last > first else (first, first + 1)
