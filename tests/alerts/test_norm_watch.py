"""The norms of every step, watched on the host."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lightning_hooks.alerts.norm_watch import RUN, Moment, NormWatch


def watch(absolute: float = 1e3, relative: float = math.inf, sizes: tuple[int, ...] = (4, 4, 4)) -> NormWatch:
    found = NormWatch(len(sizes), absolute, relative)
    found.size(range(len(sizes)), sizes)
    return found


def feed(to: NormWatch, *steps: list[float]) -> None:
    for step, norms in enumerate(steps):
        to.add(np.array(norms), Moment(10 + step, step))


def test_the_first_step_that_is_not_finite_is_kept_for_each_parameter() -> None:
    seen = watch()
    feed(seen, [1.0, 1.0, 1.0], [1.0, math.nan, math.inf], [math.nan, math.nan, 1.0])
    assert seen.triggers() == {("nonfinite", 0), ("nonfinite", 1), ("nonfinite", 2)}
    assert [(seen.since("nonfinite", index).step, seen.since("nonfinite", index).batch) for index in range(3)] == [
        (12, 2),
        (11, 1),
        (11, 1),
    ]
    stats = seen.parameters()
    assert [(entry.nonfinite_steps, entry.first_nonfinite_step) for entry in stats.values()] == [(1, 12), (2, 11), (1, 11)]
    seen.reset()
    assert seen.triggers() == set()
    assert seen.parameters() == {}


def test_a_step_that_the_optimizer_leaves_out_itself_is_forgiven() -> None:
    seen = watch()
    assert not seen.add(np.array([math.nan, 1.0, 1.0]), Moment(0, 0, forgiven=True))
    assert seen.add(np.array([math.nan, 1.0, 1.0]), Moment(1, 1))
    assert seen.since("nonfinite", 0) == Moment(1, 1)


def test_an_explosion_is_several_steps_in_a_row_above_the_limit_per_element() -> None:
    seen = watch(absolute=1e3, sizes=(4, 10_000, 4))
    feed(seen, *[[1.0, 9e4, 3e3]] * (RUN - 1))  # root mean squares 0.5, 900, 1500
    assert seen.triggers() == set()
    feed(seen, [1.0, 9e4, 4e3])
    assert seen.triggers() == {("exploding", 2)}
    (stats,) = seen.parameters().values()
    assert (stats.steps, stats.rms) == (RUN, pytest.approx(math.sqrt((2 * 1500**2 + 2000**2) / 3)))
    assert stats.norm == pytest.approx(2 * stats.rms)
    feed(seen, [1.0, 1.0, 1.0])
    assert seen.triggers() == set()
    feed(seen, [1.0, 1.0, 3e3], [1.0, 1.0, 1.0], [1.0, 1.0, 3e3], [1.0, 1.0, 3e3])
    assert seen.triggers() == set()  # never three in a row


def test_growth_over_the_parameters_is_a_trigger_too() -> None:
    seen = watch(absolute=math.inf, relative=1e4, sizes=(4,) * 9)
    feed(seen, *[[1e3, *[1.0] * 7, 1.0]] * RUN)
    assert seen.triggers() == set()
    feed(seen, *[[1e3, *[1.0] * 7, 1e-2]] * RUN)
    assert seen.triggers() == {("exploding", -1)}
    assert seen.parameters() == {}  # which module it is the rule finds
    feed(seen, [0.0] * 9)
    assert seen.triggers() == set()


def test_of_a_parameter_of_unknown_size_only_what_is_not_finite_is_reported() -> None:
    seen = NormWatch(2, absolute=1e3)
    feed(seen, *[[1e30, 1.0]] * RUN)
    assert seen.triggers() == set()
    feed(seen, [math.inf, 1.0])
    assert seen.triggers() == {("nonfinite", 0)}
