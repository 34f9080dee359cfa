"""The report on a table made by hand: each number computed on its own."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from scipy import stats

from tests.evidence.population.judges import JUDGES, bins, calibration_error, verdicts
from tests.evidence.population.report import Population, agreement, counted, loud, page, spans, spearman, wilson

RECIPE = dict.fromkeys(("task", "model", "optimizer", "schedule", "norm", "activation", "loss"), "x") | {"rate": 0.01}


def alert(kind: str, batches: int = 20, severity: str = "warning", cause: str = "") -> dict[str, Any]:
    return {"kind": kind, "severity": severity, "batches": batches, "causes": [[cause, 0.7]] if cause else []}


def row(seed: int, *alerts: dict[str, Any], operators: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    plain = {"set": "population", "name": "digits", "seed": seed, "operators": list(operators), "groups": ["data"] * len(operators)}
    plain |= {"causes": [], "healthy": True, "first_epoch": 60, "recipe": RECIPE, "versions": {"torch": "2.x", "commit": "abc1234"}}
    return {**plain, "alerts": list(alerts), **more}


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    """Four healthy draws, one of them warned of, and one that does not learn; five mutants, four harmful."""
    return [
        row(0),
        row(1, alert("dead")),
        row(2, alert("loss_plateau", severity="info")),
        row(3),
        row(4, alert("no_progress"), healthy=False),
        row(0, alert("exploding", 20, cause="rate_too_high"), operators=("fast",), causes=["rate_too_high"], harmful=True),
        row(1, alert("dead"), operators=("fast",), causes=["rate_too_high"], harmful=True),  # its twin has it too
        row(2, alert("loss_plateau", 100, cause="x"), operators=("slow",), causes=["rate_too_low"], harmful=True),
        row(3, alert("dead"), alert("zero"), operators=("slow",), harmful=False),
        row(3, alert("zero"), operators=("slow", "fast"), harmful=True, raised="ValueError: of its own"),
        row(9, alert("zero"), operators=("slow",), harmful=True),  # without a twin
    ]


def test_who_counts(rows: list[dict[str, Any]]) -> None:
    population = Population(rows)

    assert (len(population.healthy), population.dropped) == (4, 1)
    assert [(m.row["operators"], m.found, m.early, m.named) for m in population.harmful] == [
        (["fast"], True, True, True),
        (["fast"], False, False, False),
        (["slow"], True, False, False),
    ]
    assert [m.found for m in population.harmless] == [True]
    assert population.false_kinds() == {"dead": 1}


def test_the_page_has_these_numbers(rows: list[dict[str, Any]]) -> None:
    text = page(rows, "2026-01-31")

    assert "2026-01-31, seeds of development 0 to 9, commit `abc1234`, PyTorch 2.x: 5 trainings drawn, 1 dropped" in text
    assert "Of their mutants 1 raised an error or took too long (0), and are left out." in text
    assert "correlate" not in text
    assert f"**False warnings: {counted(1, 4)} of the healthy trainings.**" in text
    line = next(line for line in text.splitlines() if line.startswith("| all |"))
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["all", "3", counted(1, 3), counted(2, 3), counted(1, 2), "1.00", counted(1, 1), ""]
    assert "| data | 3 |" in text
    assert "fast 1/2, slow 1/1" in text
    assert "| `dead` | 1 of 4, 25.0 % (4.6 to 69.9) | x, x, x 0.01 | `python -m tests.evidence.population.show 1` |" in text
    assert sum(bool(line) for line in text.splitlines()) <= 40


def test_intervals_are_those_of_scipy() -> None:
    for some, of in ((0, 7), (1, 4), (31, 1077), (405, 541), (5, 5)):
        expected = stats.binomtest(some, of).proportion_ci(0.95, "wilson")
        assert wilson(some, of) == pytest.approx((expected.low, expected.high), abs=1e-4)
    assert counted(31, 1077) == "31 of 1077, 2.9 % (2.0 to 4.1)"
    assert counted(0, 0) == "-"


def test_shares_by_kind(rows: list[dict[str, Any]]) -> None:
    here = agreement(Population(rows), Population(rows))

    assert here["dead"][0] == Fraction(1, 4)
    assert here["exploding"][2] == Fraction(1, 2)  # both faults whose cause it may name
    assert math.isnan(here["not_zeroed"][2])


def test_ranks_correlate_as_scipy_says() -> None:
    pairs = [(0.1, 3.0), (0.4, 1.0), (0.4, 2.0), (0.0, 9.0), (0.9, 1.0), (math.nan, 1.0)]

    assert spearman(pairs) == pytest.approx(stats.spearmanr(pairs[:-1]).statistic)
    assert math.isnan(spearman(pairs[:2]))


def judged(kind: str, *evidence: str) -> dict[str, Any]:
    return {**alert(kind), "evidence": list(evidence)}


def test_the_calibration_weighs_trainings_by_the_share_that_has_a_fault() -> None:
    """Two healthy trainings stand for four fifths, and two harmed ones for one fifth: each healthy one counts four times."""
    healthy = [row(0, judged("dead", "part")), row(1)]
    harmed = [
        row(2, judged("dead", "part"), judged("dead", "all"), judged("zero", "all")),
        row(3, judged("zero", "all"), alert("own")),
    ]
    low, high = bins(healthy, harmed, lambda alert: {"part": 0.5, "all": 1.0}[alert["evidence"][0]])

    assert low == (0.4, 0.6, 2, 5.0, 0.5, pytest.approx(1 / 5))
    assert high == (0.95, 1.0, 2, 2.0, 1.0, 1.0)
    assert calibration_error([low, high]) == pytest.approx((5 * 0.3 + 2 * 0) / 7)


def test_the_judges_are_compared_on_what_twins_do_not_have() -> None:
    healthy = [row(0, judged("dead", "symptom", "a part of it")), row(1, judged("zero", "symptom", "all of it"))]
    harmed = [
        row(0, judged("dead", "symptom", "all of it"), judged("lr_zero", "fact")),
        row(1, judged("zero", "symptom", "all of it"), judged("dead", "symptom", "symptom, cause known")),
        row(1, judged("zero", "symptom", "all of it"), judged("dead", "symptom", "a part of it")),
    ]
    pairs = [(one, healthy[one["seed"]]) for one in harmed]

    assert verdicts(healthy, pairs, JUDGES["rules alone"]) == (2, 3)
    assert verdicts(healthy, pairs, JUDGES["classes, without weights"]) == (1, 2)
    assert verdicts(healthy, pairs, lambda alert: 0.79) == (0, 0)


def test_seeds_in_words() -> None:
    assert spans([3, 1, 2, 1_000_000]) == "1 to 3, 1000000"
    assert loud(row(0, alert("dead", severity="info"))) == []
