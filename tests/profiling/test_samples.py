"""From steps to a report: held against Python's own statistics."""

from __future__ import annotations

import json
import math
import random
import statistics

import pytest

from lightning_hooks.profiling.clock import FORWARD, OTHER, Place
from lightning_hooks.profiling.report import Tally, TracedStep, profile_report


def steps(times: list[float], place: Place) -> list[TracedStep]:
    return [
        TracedStep(
            {0: Tally(calls=1 + index % 2, output_bytes=8)},
            accounts={(place, FORWARD): value, ((), OTHER): 1.0},
            overhead=0.5,
        )
        for index, value in enumerate(times)
    ]


def percentile(values: list[float], share: float) -> float:
    """Linear between the two nearest: the definition, written out."""
    ordered, at = sorted(values), share * (len(values) - 1)
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def test_the_spread_is_that_of_the_steps() -> None:
    rng = random.Random(0)
    times = [rng.expovariate(0.1) for _ in range(37)]
    report = profile_report(["a", "b"], steps(times, (0,)), {}, epoch=4, step=37, batches=50, device="cpu")
    spread = report.sites["a"].forward_self
    assert spread.mean == pytest.approx(statistics.fmean(times))
    assert spread.std == pytest.approx(statistics.pstdev(times))
    assert spread.p50 == pytest.approx(statistics.median(times))
    assert spread.p95 == pytest.approx(percentile(times, 0.95))
    assert report.sites["a"].share == pytest.approx(statistics.fmean(times) / (statistics.fmean(times) + 1))
    assert report.sites["a"].calls == pytest.approx(55 / 37)
    assert report.sites["a"].output_bytes == 8
    assert (report.epoch, report.step, report.measured_steps, report.batches) == (4, 37, 37, 50)
    assert (report.silent, report.overhead) == (("b",), 0.5)
    assert json.loads(json.dumps(report.to_dict()))["sites"]["a"]["forward_self"]["mean"] == pytest.approx(spread.mean)
