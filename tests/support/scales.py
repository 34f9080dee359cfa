"""Comparing numbers that cancel: a mean near zero is mostly the rounding of what was added up, and that differs by processor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

SCALES = {"mean": "rms"}
"""A statistic that cancels, and the one of the same values that is its scale."""


def scale_of(name: str) -> str:
    """The name of the statistic that is the scale of another, such as ``features/net.0/rms``; empty if that one does not cancel."""
    place, slash, stat = name.rpartition("/")
    return f"{place}{slash}{SCALES[stat]}" if stat in SCALES else ""


def approx_mean(values: Any, rel: float = 1e-6) -> Any:
    """``pytest.approx`` for the mean of values: within ``rel`` of their RMS."""
    values = np.asarray(values, dtype=np.float64)
    return pytest.approx(float(values.mean()), rel=0, abs=rel * math.sqrt(np.square(values).mean()))


def same_number(found: float, expected: float, rel: float, scale: float = 0.0, tiny: float = 0.0) -> bool:
    """Whether two numbers differ by at most ``rel`` of the larger, ``rel`` of ``scale``, or ``tiny``; NaN equals NaN."""
    if math.isnan(expected) or math.isnan(found):
        return math.isnan(expected) and math.isnan(found)
    return math.isclose(found, expected, rel_tol=rel, abs_tol=max(tiny, rel * scale if math.isfinite(scale) else 0.0))
