"""Numbers, shares and durations as they are written in a report."""

from __future__ import annotations

import math
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import known_kind

DASH = "\N{EN DASH}"


def number(value: Any) -> str:
    """A number in three significant digits, in ASCII so that it can be pasted; a dash for none."""
    if value is None:
        return DASH
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    return f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share in percent; a dash for none."""
    if value is None or math.isnan(value):
        return number(None if value is None else value)
    shown = f"{100 * value:.3g}" if 0 < value < 0.0995 else f"{100 * value:.0f}"
    return f"{shown} %"


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if math.isnan(value):
        return DASH
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"


def measured(alert: Alert) -> tuple[str, str]:
    """An alert's value and its limit in the unit of its kind; empty where there is nothing to measure."""
    known = known_kind(alert.kind)
    measures = "number" if known is None else known.measures
    if measures == "nothing":
        return "", ""
    share = measures == "share" or (alert.kind == "nonfinite" and 0 < alert.value < 1)
    return (percent(alert.value), percent(alert.threshold)) if share else (number(alert.value), number(alert.threshold))
