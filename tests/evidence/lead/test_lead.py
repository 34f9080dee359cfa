"""One instability and its twin; the run of all is ``python -m tests.evidence.lead.run``. And what is computed of the losses."""

from __future__ import annotations

import math

import pytest

from tests.evidence.lead.cases import CASES, LASTING, divergence, lead_time, median_with_interval
from tests.evidence.lead.run import run_one, table, with_lead_times


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 6
    assert sum(case.calibrates for case in CASES.values()) <= len(CASES) / 2


def test_a_warning_comes_long_before_the_divergence_and_the_twin_is_silent() -> None:
    rows = with_lead_times([run_one(("learning_rate_grows", 0, planted)) for planted in (True, False)])
    faulty, twin = rows
    assert (twin["alerts"], twin["diverged"]) == ([], None)
    assert faulty["lead"] >= 40
    assert faulty["first"][0] == "weights_growing"
    assert "| 0 of 1 |" in table(rows)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([3.0] * 50, None),
        ([3.0] * 10 + [1.0] + [2.1] * LASTING, 11),
        ([1.0] + [2.1] * (LASTING - 1) + [1.0] + [2.1] * (LASTING - 1), None),  # it comes back
        ([1.0] + [1.9] * 50, None),
        ([1.0] * 5 + [math.nan], 5),
        ([1.0] * 5 + [3.0] * 4 + [math.inf], 5),
    ],
)
def test_divergence(losses: list[float], expected: int | None) -> None:
    assert divergence(losses) == expected


@pytest.mark.parametrize(("warned", "lead"), [(40, 60), (100, 0), (120, 0), (None, 0)])
def test_lead_time(warned: int | None, lead: int) -> None:
    assert lead_time(warned, 100) == lead


def test_the_interval_of_a_median() -> None:
    median, low, high = median_with_interval([10, 20, 30, 40, 50])
    assert (median, low >= 10, high <= 50, low < median < high) == (30, True, True, True)
    assert median_with_interval([7.0]) == (7.0, 7.0, 7.0)
    assert all(map(math.isnan, median_with_interval([])))
