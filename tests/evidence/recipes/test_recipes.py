"""The catalogue of recipes is whole, and a mistake of it is found; all are trained by ``python -m tests.evidence.recipes.run``."""

from __future__ import annotations

from tests.evidence.recipes.case import FAULTS, HEALTHY, load
from tests.evidence.recipes.run import run, table


def test_every_mistake_has_its_healthy_recipe_and_a_story_of_its_own() -> None:
    load()
    assert (len(HEALTHY), len(FAULTS)) == (130, 130)
    assert len({fault.story for fault in FAULTS.values()}) == len(FAULTS)
    assert all(fault.healthy in HEALTHY.values() and fault.lost > 0.25 for fault in FAULTS.values())


def test_a_mistake_is_counted_as_found_by_what_its_twin_does_not_have() -> None:
    load()
    name = "mse_broadcasts"
    rows = [run(("planted", name)), run(("twin", name))]
    assert [bool(row["alerts"]) for row in rows] == [True, False]
    assert "1 of 1 mistakes are found" in table(rows)
    assert "0 of 1 mistakes are found" in table([rows[0], {**rows[0], "what": "twin"}])
