"""A slice of the bugs of others: each is found, its twin and healthy programs are silent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.evidence.bugs.catalogue import CASES
from tests.evidence.bugs.run import jobs, run_one, table

FOUND = (
    *("frozen_head_in_the_optimizer", "strided_weight_not_updated", "head_without_graph"),
    *("average_never_updated", "average_not_put_back", "frozen_again_on_resume"),
    *("average_with_the_wrong_sign", "decay_overwritten", "no_key_fits", "teacher_never_moves"),
)
HEALTHY = ("regression", "gcn")

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", FOUND)
def test_a_bug_is_found_and_its_twin_is_silent(name: str) -> None:
    row, twin = run_one((name, True)), run_one((name, False))
    assert row["found"], row["alerts"]
    assert row["site"] is not False
    assert not twin["alerts"]


def test_workers_with_equal_seeds_are_found() -> None:
    assert run_one(("workers_draw_the_same_noise", True))["found"]


@pytest.mark.ranks
def test_a_bug_of_two_ranks_is_found() -> None:
    row = run_one(("parameters_moved_after_ddp", True))
    assert (row["found"], row["site"]) == (True, True)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_program_is_silent(name: str) -> None:
    assert not run_one((name, True))["alerts"]


def test_the_table_has_a_line_for_each() -> None:
    assert len(jobs(list(CASES))) == 2 * len(CASES) - sum(case.healthy for case in CASES.values())
    kept: dict[str, Any] = {"alerts": [], "found": False, "site": None, "batches": None, "kinds": ["a", "b"], "missed": ""}
    bug = {**kept, "name": "x", "healthy": False, "planted": True, "story": "a story", "thread": "owner/name#1"}
    text = table([bug, {**bug, "planted": False, "alerts": [["dead", "net", "warning", 3]]}])
    assert "| a story (`x`) | [owner/name#1](https://github.com/owner/name/issues/1) | **no**: expected a or b | - | - |  |" in text
    assert "| twin of `x` |  | dead at net |" in text
    assert text.endswith("0 of 1 bugs found; warnings in 1 of 1 twins and programs.")
