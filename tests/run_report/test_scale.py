"""Axes: where numbers stand, and which are written."""

import itertools
import math
import random

import pytest

from lightning_hooks.run_report.charts import FEWEST_TICKS, MOST_TICKS, numbered, scale


@pytest.mark.parametrize("kind", ["log", "linear"])
def test_every_axis_has_three_ticks_at_least_and_holds_its_numbers(kind):
    draw = random.Random(0)
    for _ in range(300):
        center = 10 ** draw.uniform(-8, 8)
        values = [center * 10 ** draw.uniform(0, draw.choice([0.001, 0.2, 1.0, 7.0])) for _ in range(draw.choice([1, 2, 9]))]
        axis = scale(values, kind)
        assert FEWEST_TICKS <= len(axis.ticks) <= 2 * MOST_TICKS, (values, axis)
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
        assert list(axis.ticks) == sorted(set(axis.ticks))
        assert all(0 < axis.place(value) < 1 for value in values)


def test_places_are_in_proportion():
    log, share = scale([1e-4, 1.0]), scale([], "share")
    step = math.log10(log.high) - math.log10(log.low)
    assert log.place(1e-2) - log.place(1e-4) == pytest.approx(2 / step)
    assert (share.place(0.25), share.place(-1.0), share.place(7.0)) == (0.25, 0.0, 1.0)


@pytest.mark.parametrize("values", [[], [0.0], [math.nan, math.inf], [5.0, 5.0], [-3.0], [1e300, 1e-300]])
@pytest.mark.parametrize("kind", ["log", "linear", "share"])
def test_odd_numbers_have_an_axis(values, kind):
    axis = scale(values, kind)
    assert axis.low < axis.high
    assert axis.ticks


def test_columns_that_are_numbered_stand_apart():
    assert numbered(1) == [0]
    assert numbered(6) == [0, 1, 2, 3, 4, 5]
    for count in range(7, 400):
        shown = numbered(count)
        assert (shown[0], shown[-1]) == (0, count - 1)
        assert len(shown) <= MOST_TICKS + 1
        assert min(b - a for a, b in itertools.pairwise(shown)) * 12 >= count - 1
