"""Scales of charts: positions of numbers along an axis, and its ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["log", "linear", "share"]
MOST_TICKS = 6
FEWEST_TICKS = 3


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
