"""Curves over the epochs and lines of numbers on a common scale: positions in percent from the left and from the top."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal, NamedTuple

from lightning_hooks.declare.kinds import gravity
from lightning_hooks.plots.canvas import round_numbers
from lightning_hooks.run_report.text import number, percent

Kind = Literal["log", "linear", "share"]
MOST_TICKS = 6
FEWEST_TICKS = 3
MOST_MARKED = 40
"""Up to so many epochs each point of a curve has a mark."""
SHOWN_ROWS = 40
"""Of more rows those with an alert come first, and those beyond are folded."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high``."""

    kind: Kind  # log, linear, or share (linear from 0 to 1)
    low: float  # the number at its beginning
    high: float  # that at its end
    ticks: tuple[float, ...]  # the numbers that are written along it

    def place(self, value: float) -> float:
        """The position of a number, from 0 at the beginning to 1 at the end, clipped to these."""
        low, high = self.low, self.high
        if self.kind == "log":
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, 1e-300))
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def shows(self, value: float) -> bool:
        """Whether a number has a place here at all."""
        return math.isfinite(value) and (value > 0 or self.kind != "log")

    def text(self, value: float) -> str:
        """A number as it is written next to this axis."""
        return percent(value) if self.kind == "share" else number(value)

    def tick_text(self, tick: float) -> str:
        """A number along the axis: a power of ten as ``1e-3`` where all are, else in full."""
        if self.kind == "share":
            return percent(tick)
        powers = self.kind == "log" and all(math.isclose(one, 10.0 ** round(math.log10(one))) for one in self.ticks)
        return f"1e{round(math.log10(tick))}" if powers else f"{tick:.6g}"


def scale(values: Iterable[float], kind: Kind = "log") -> Scale:
    """Make a scale that holds all numbers which it can show, with a little room around them and at least three ticks."""
    if kind == "share":
        return Scale(kind, 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
    return _log(values) if kind == "log" else _linear(values)


def decades(values: Iterable[float]) -> Scale:
    """A logarithmic scale of whole decades."""
    logs = _logs(values) or [-1.0, 1.0]
    first, last = math.floor(min(logs)), math.ceil(max(logs))
    last = max(last, first + 1)
    ticks = tuple(10.0**power for power in range(first, last + 1, max(1, -(-(last - first) // 5))))
    return Scale("log", 10.0**first, 10.0**last, ticks)


def _logs(values: Iterable[float]) -> list[float]:
    """The logarithms of what a logarithmic scale can show."""
    return [math.log10(min(max(value, 1e-290), 1e290)) for value in values if math.isfinite(value) and value > 0]


def _log(values: Iterable[float]) -> Scale:
    logs = _logs(values) or [0.0]
    low, high = min(logs), max(logs)
    room = max(0.06 * (high - low), 0.1)
    low, high = max(low - room, -300.0), min(high + room, 300.0)
    powers = range(math.ceil(low), math.floor(high) + 1)
    step = -(-len(powers) // MOST_TICKS)
    ticks = [10.0**power for power in powers if power % step == 0] if len(powers) >= FEWEST_TICKS else []
    for digits in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), range(1, 10)):  # a decade or two: numbers between them
        if len(ticks) < FEWEST_TICKS:
            tens = range(math.ceil(low) - 1, math.floor(high) + 1)
            ticks = [digit * 10.0**power for power in tens for digit in digits if low <= math.log10(digit) + power <= high]
    if len(ticks) < FEWEST_TICKS:  # less than a decade
        ticks = [tick for tick in _round(10.0**low, 10.0**high) if tick > 0]
    return Scale("log", 10.0**low, 10.0**high, tuple(ticks))


def _linear(values: Iterable[float]) -> Scale:
    known = [value for value in values if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    low, high = low - room, high + room
    if not math.isfinite(high - low):
        low, high = -1e300, 1e300
    return Scale("linear", low, high, tuple(_round(low, high)))


def _round(low: float, high: float) -> list[float]:
    """Round numbers, evenly spread, three to seven of them."""
    least = (high - low) / MOST_TICKS
    base = 10.0 ** math.floor(math.log10(least))
    step = next(digit * base for digit in (1, 2, 2.5, 5, 10) if digit * base >= least)
    numbers = range(math.ceil(low / step), math.floor(high / step) + 1)
    return [round(n * step, 12) if abs(step) > 1e-9 else n * step for n in numbers]


def numbered(count: int, most: int = MOST_TICKS) -> list[int]:
    """Which of so many columns get a label: the first, the last, and round ones between them with enough room."""
    if count <= most:
        return list(range(count))
    step = next(n for n in round_numbers() if n >= (count - 1) / (most - 1))
    inner = [place for place in range(step, count - 1, step) if count - 1 - place > step / 2]
    return [0, *inner, count - 1]


class Tick(NamedTuple):
    """A label of an axis, at so many percent of it."""

    at: float
    text: str


class Zone(NamedTuple):
    """A rectangle whose title a pointer over it shows."""

    x: float
    y: float
    width: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of :func:`chart`."""

    label: str  # its name
    values: Sequence[float]  # one per epoch; what is not finite is left out
    color: str  # a CSS colour
    dashed: bool = False  # whether it is dashed, without marks, from edge to edge if all its values are the same: a threshold
    top: Sequence[float] | None = None  # the upper edge of a band above it


class Curve(NamedTuple):
    """A :class:`Line` with its points in place."""

    line: Line
    level: float | None  # the height of a threshold from edge to edge; None for a curve
    parts: list[tuple[list[str], list[str]]]  # without a gap: points as ``x,y``, and the upper edge of the band, backwards
    marked: bool  # whether each point has a mark


class Chart(NamedTuple):
    """Curves over the epochs."""

    label: str  # in words
    height: int  # in pixels
    curves: list[Curve]  # from the lowest to the uppermost
    ticks: list[Tick]  # along the axis of values
    epochs: list[Tick]  # along the axis of epochs, or steps
    zones: list[Zone]  # one per epoch; its title holds the epoch's numbers


def chart(lines: Sequence[Line], epochs: Sequence[int], height: int = 170, kind: Kind = "log", unit: str = "epoch") -> Chart:
    """Place curves, at least one, over the epochs, or the steps where windows are shorter."""
    axis = scale((value for line in lines for value in [*line.values, *(line.top or ())]), kind)
    xs = [50.0] if len(epochs) == 1 else [round(100 * place / (len(epochs) - 1), 2) for place in range(len(epochs))]
    half = 50 / max(len(xs) - 1, 1)
    zones = []
    for place, x in enumerate(xs):
        left, right = max(x - half, 0.0), min(x + half, 100.0)
        values = "".join(f"; {line.label}: {axis.text(line.values[place])}" for line in lines)
        zones.append(Zone(round(left, 2), 0, round(right - left, 2), 100, f"{unit} {epochs[place]}{values}"))
    return Chart(
        ", ".join(line.label for line in lines) + f" over {unit}s {epochs[0]} to {epochs[-1]}",
        height,
        [_curve(line, xs, axis) for line in lines],
        [Tick(_height(tick, axis), axis.tick_text(tick)) for tick in axis.ticks],
        epoch_ticks(epochs, xs, unit),
        zones,
    )


def epoch_ticks(epochs: Sequence[int], xs: Sequence[float], unit: str = "epoch") -> list[Tick]:
    """The numbers of some epochs (or steps), each where its ``x`` is."""
    return [Tick(xs[place], f"{unit} {epochs[place]}" if place == 0 else str(epochs[place])) for place in numbered(len(epochs))]


def strip(active: Iterable[int], epochs: Sequence[int]) -> list[tuple[int, int]]:
    """The marked ones among all epochs, as (place of the first, how many) of each run of them."""
    marked = set(active)
    return [(run[0], len(run)) for run in _runs([epoch in marked for epoch in epochs])]


def _runs(shown: Sequence[bool]) -> list[list[int]]:
    """The places of what is shown, in runs without a gap."""
    return [[place for place, _ in run] for shows, run in groupby(enumerate(shown), itemgetter(1)) if shows]


def _height(value: float, axis: Scale) -> float:
    return round(100 - 100 * axis.place(value), 2)


def _curve(line: Line, xs: Sequence[float], axis: Scale) -> Curve:
    known = [value for value in line.values if axis.shows(value)]
    if line.dashed and known and min(known) == max(known):
        return Curve(line, _height(known[0], axis), [], False)
    top = line.top or [math.nan] * len(xs)
    parts = [
        (
            [f"{xs[i]},{_height(line.values[i], axis)}" for i in run],
            [f"{xs[i]},{_height(top[i], axis)}" for i in reversed(run) if math.isfinite(top[i])],
        )
        for run in _runs([axis.shows(value) for value in line.values])
    ]
    return Curve(line, None, parts, len(xs) <= MOST_MARKED and not line.dashed)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of :class:`Rows`."""

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
class Rows:
    """Lines on a common scale, with positions in percent from the left."""

    lines: list[Row]  # from the first to the last
    what: str  # what the numbers are, for the head
    axis: Scale
    thresholds: Sequence[float]  # of rules, drawn as a line where the scale reaches

    @property
    def bars(self) -> bool:
        """Whether values are drawn as bars from 0."""
        return self.axis.kind == "share" and all(line.other is None for line in self.lines)

    @property
    def decades(self) -> int:
        """Parts of the scale."""
        return 10 if self.axis.kind == "share" else round(math.log10(self.axis.high / self.axis.low))

    @property
    def ticks(self) -> list[Tick]:
        """Numbers along the scale."""
        return [Tick(round(100 * self.axis.place(tick), 1), self.axis.tick_text(tick)) for tick in self.axis.ticks]

    @property
    def limits(self) -> list[Tick]:
        """The thresholds that the scale reaches."""
        reached = [limit for limit in self.thresholds if self.axis.low < limit < self.axis.high]
        return [Tick(round(100 * self.axis.place(limit), 1), self.axis.text(limit)) for limit in reached]

    def at(self, value: float | None) -> float | None:
        """The position of a number; None where the scale does not show it."""
        return None if value is None or not self.axis.shows(value) else round(100 * self.axis.place(value), 1)

    def band(self, line: Row) -> tuple[float, float] | None:
        """Where the band of a line begins, and how wide it is; None for no band."""
        end = self.at(line.high)
        if line.low is None or end is None:
            return None
        start = self.at(line.low) or 0.0
        return start, round(max(end - start, 0.0), 1)


def rows(lines: Sequence[Row], what: str, linear: bool = False, shades: Sequence[float] = (), limits: Sequence[float] = ()) -> Rows:
    """Place lines on a common scale: logarithmic, in whole decades that hold ``shades`` too, or linear from 0 to 1, with bars.

    Of many lines, those with an alert come first.
    """
    values = [value for line in lines for value in (line.value, line.high, line.other) if value is not None]
    axis = Scale("share", 0.0, 1.0, (0.0, 0.5, 1.0)) if linear else decades([*values, *shades])
    folds = len(lines) > SHOWN_ROWS  # a sort keeps the model's order among equals
    return Rows(sorted(lines, key=lambda line: gravity(line.severity) if folds else 0), what, axis, limits)
