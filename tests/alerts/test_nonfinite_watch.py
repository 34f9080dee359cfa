"""The norms of every step, watched on the host."""

from __future__ import annotations

import math

import numpy as np

from lightning_hooks.diagnostics.nonfinite.checks import CheckedStep, NonfiniteWatch


def feed(to: NonfiniteWatch, *steps: list[float]) -> list[bool]:
    return [to.add(np.array(norms), CheckedStep(10 + step, step)) for step, norms in enumerate(steps)]


def test_the_first_step_that_is_not_finite_is_kept_for_each_parameter() -> None:
    seen = NonfiniteWatch(3)
    assert feed(seen, [1.0, 1.0, 1e300], [1.0, math.nan, math.inf], [math.nan, math.nan, 1.0]) == [False, True, True]
    assert [(seen.first[index].step, seen.first[index].batch) for index in range(3)] == [(12, 2), (11, 1), (11, 1)]
    stats = seen.parameters()
    assert [(entry.nonfinite_steps, entry.first_nonfinite_step) for entry in stats.values()] == [(1, 12), (2, 11), (1, 11)]
    seen.reset()
    assert seen.first == seen.parameters() == {}


def test_a_step_that_the_optimizer_leaves_out_itself_is_left_out() -> None:
    seen = NonfiniteWatch(3)
    assert not seen.add(np.array([math.nan, 1.0, 1.0]), CheckedStep(0, 0, left_out=True))
    assert seen.add(np.array([math.nan, 1.0, 1.0]), CheckedStep(1, 1))
    assert seen.first[0] == CheckedStep(1, 1)


def test_parameters_that_come_later_have_a_place() -> None:
    seen = NonfiniteWatch(1)
    seen.grow(2)
    feed(seen, [1.0, math.inf])
    assert list(seen.parameters()) == [1]
    feed(seen, [math.inf])  # a step read before the last one came
    assert list(seen.parameters()) == [0, 1]
