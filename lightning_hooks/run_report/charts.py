"""Curves over the epochs: scales, and positions of points and labels in percent from the left and from the top."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from lightning_hooks.run_report.numerals import number, percent

Kind = Literal["log", "linear", "share"]
MOST_TICKS = 6
FEWEST_TICKS = 3
MOST_MARKED = 40
"""Up to so many epochs each point of a curve has a mark."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from ``low`` to ``high``."""

    kind: Kind  # log, linear, or share (linear from 0 to 1)
    low: float  # the number at its beginning
    high: float  # that at its end
    ticks: tuple[float, ...]  # the numbers that are written along it

    def place(self, value: float) -> float:
        """The position of a number, from 0 at the beginning to 1 at the end, clipped to these."""
        if self.kind == "log":
            low, high = math.log10(self.low), math.log10(self.high)
            share = (math.log10(max(value, 1e-300)) - low) / (high - low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return min(max(share, 0.0), 1.0)

    def shows(self, value: float) -> bool:
        """Whether a number has a place here at all."""
        return math.isfinite(value) and (value > 0 or self.kind != "log")


def scale(values: Iterable[float], kind: Kind = "log") -> Scale:
    """Make a scale that holds all numbers which it can show, with a little room around them and at least three ticks."""
    if kind == "share":
        return Scale(kind, 0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0))
    known = [value for value in values if math.isfinite(value) and (value > 0 or kind == "linear")]
    return _log(known) if kind == "log" else _linear(known)


def _log(known: Sequence[float]) -> Scale:
    logs = [math.log10(min(max(value, 1e-290), 1e290)) for value in known] or [0.0]
    low, high = min(logs), max(logs)
    room = max(0.06 * (high - low), 0.1)
    low, high = max(low - room, -300.0), min(high + room, 300.0)
    first, last = math.ceil(low), math.floor(high)
    if last - first + 1 >= FEWEST_TICKS:
        step = -(-(last - first + 1) // MOST_TICKS)
        ticks = [10.0**power for power in range(first, last + 1) if power % step == 0]
    else:  # a decade or two: numbers between them
        ticks = []
        powers = range(first - 1, last + 1)
        for digits in ((1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), range(1, 10)):
            ticks = [digit * 10.0**power for power in powers for digit in digits if low <= math.log10(digit) + power <= high]
            if len(ticks) >= FEWEST_TICKS:
                break
    if len(ticks) < FEWEST_TICKS:  # less than a decade
        ticks = [tick for tick in _round(10.0**low, 10.0**high) if tick > 0]
    return Scale("log", 10.0**low, 10.0**high, tuple(ticks))


def _linear(known: Sequence[float]) -> Scale:
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    room = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    low, high = low - room, high + room
    if not math.isfinite(high - low):
        low, high = -1e300, 1e300
    return Scale("linear", low, high, tuple(_round(low, high)))


def _round(low: float, high: float) -> list[float]:
    """Round numbers, evenly spread, three to seven of them."""
    raw = (high - low) / MOST_TICKS
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * base for digit in (1, 2, 2.5, 5, 10) if digit * base >= raw)
    first = math.ceil(low / step)
    return [round(n * step, 12) if abs(step) > 1e-9 else n * step for n in range(first, math.floor(high / step) + 1)]


def numbered(count: int, most: int = MOST_TICKS) -> list[int]:
    """Which of so many columns get a label: the first, the last, and round ones between them with enough room."""
    if count <= most:
        return list(range(count))
    raw = (count - 1) / (most - 1)
    base = 10 ** math.floor(math.log10(raw))
    step = max(1, next(round(digit * base) for digit in (1, 2, 5, 10) if digit * base >= raw))
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


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a curve without a gap."""

    points: list[str]  # as SVG has them: ``x,y`` pairs, in order
    band: list[str]  # the upper edge of the band above it, from the last to the first


@dataclass(frozen=True, slots=True)
class Curve:
    """A :class:`Line` with its points in place."""

    line: Line
    level: float | None  # the height of a threshold from edge to edge; None for a curve
    parts: list[Segment]
    marked: bool  # whether each point has a mark


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over the epochs."""

    label: str  # in words
    height: int  # in pixels
    curves: list[Curve]  # from the lowest to the uppermost
    ticks: list[Tick]  # along the axis of values
    epochs: list[Tick]  # along the axis of epochs, or steps
    zones: list[Zone]  # one per epoch; its title holds the epoch's numbers


def chart(lines: Sequence[Line], epochs: Sequence[int], height: int = 170, kind: Kind = "log", unit: str = "epoch") -> Chart:
    """Place curves over the epochs.

    Args:
        lines: At least one.
        epochs: The epochs of the values.
        height: In pixels.
        kind: Of the scale.
        unit: What numbers the values: ``epoch``, or ``step`` where windows are shorter.
    """
    axis = scale((value for line in lines for value in [*line.values, *(line.top or ())]), kind)
    xs = [50.0] if len(epochs) == 1 else [round(100 * place / (len(epochs) - 1), 2) for place in range(len(epochs))]
    label = ", ".join(line.label for line in lines) + f" over {unit}s {epochs[0]} to {epochs[-1]}"
    return Chart(
        label,
        height,
        [_curve(line, xs, axis) for line in lines],
        [Tick(_height(tick, axis), tick_text(tick, axis)) for tick in axis.ticks],
        epoch_ticks(epochs, xs, unit),
        _zones(lines, [f"{unit} {epoch}" for epoch in epochs], xs, percent if kind == "share" else number),
    )


def epoch_ticks(epochs: Sequence[int], xs: Sequence[float], unit: str = "epoch") -> list[Tick]:
    """The numbers of some epochs (or steps), each where its ``x`` is."""
    return [Tick(xs[place], f"{unit} {epochs[place]}" if place == 0 else str(epochs[place])) for place in numbered(len(epochs))]


def tick_text(tick: float, axis: Scale) -> str:
    """A number along an axis: a power of ten as ``1e-3`` where all are, else in full."""
    if axis.kind == "share":
        return percent(tick)
    powers = axis.kind == "log" and all(math.isclose(one, 10.0 ** round(math.log10(one))) for one in axis.ticks)
    return f"1e{round(math.log10(tick))}" if powers else f"{tick:.6g}"


def strip(active: Iterable[int], epochs: Sequence[int]) -> list[tuple[int, int]]:
    """The marked ones among all epochs, as (place of the first, how many) of each run of them."""
    place = {epoch: index for index, epoch in enumerate(epochs)}
    blocks: list[tuple[int, int]] = []
    for index in sorted(place[epoch] for epoch in active if epoch in place):
        if blocks and index == sum(blocks[-1]):
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1)
        else:
            blocks.append((index, 1))
    return blocks


def _height(value: float, axis: Scale) -> float:
    return round(100 - 100 * axis.place(value), 2)


def _curve(line: Line, xs: Sequence[float], axis: Scale) -> Curve:
    known = [value for value in line.values if axis.shows(value)]
    if line.dashed and known and min(known) == max(known):
        return Curve(line, _height(known[0], axis), [], False)
    places: list[list[int]] = [[]]
    for place, value in enumerate(line.values):
        if axis.shows(value):
            places[-1].append(place)
        elif places[-1]:
            places.append([])
    top = line.top or [math.nan] * len(xs)
    parts = [
        Segment(
            [f"{xs[i]},{_height(line.values[i], axis)}" for i in part],
            [f"{xs[i]},{_height(top[i], axis)}" for i in reversed(part) if math.isfinite(top[i])],
        )
        for part in places
        if part
    ]
    return Curve(line, None, parts, len(xs) <= MOST_MARKED and not line.dashed)


def _zones(lines: Sequence[Line], named: Sequence[str], xs: Sequence[float], shown: Callable[[float], str]) -> list[Zone]:
    half = 50 / max(len(xs) - 1, 1)
    zones = []
    for place, (when, x) in enumerate(zip(named, xs, strict=True)):
        left, right = max(x - half, 0.0), min(x + half, 100.0)
        values = "".join(f"; {line.label}: {shown(line.values[place])}" for line in lines)
        zones.append(Zone(round(left, 2), 0, round(right - left, 2), 100, f"{when}{values}"))
    return zones
