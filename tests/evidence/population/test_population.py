"""The grammar draws what builds and trains, the same from the same seed; most of it learns."""

from __future__ import annotations

import dataclasses
import json

import pytest

from tests.evidence.population import healthy
from tests.evidence.population.grammar import draw
from tests.evidence.population.models import MODELS
from tests.evidence.population.pairs import TooLong, limited, pair, train
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.record import append, packed
from tests.evidence.population.run import done
from tests.evidence.population.tasks import TASKS

MANY = [draw(seed) for seed in range(3000)]
COMBINATIONS = list({(recipe.task, recipe.source, recipe.model): recipe for recipe in MANY}.values())


def test_every_choice_is_drawn() -> None:
    for field in dataclasses.fields(Recipe):
        if field.name != "seed":
            assert len({getattr(recipe, field.name) for recipe in MANY}) > 1, field.name
    assert {recipe.task for recipe in MANY} == set(TASKS)
    assert {recipe.model for recipe in MANY} == set(MODELS)
    assert {healthy.key(recipe) for recipe in MANY} == set(healthy.table())


def test_a_recipe_is_plain_and_drawn_from_the_seed_alone() -> None:
    for recipe in MANY[:50]:
        assert draw(recipe.seed) == recipe
        assert json.loads(json.dumps(recipe.plain()))["task"] == recipe.task


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_trains_with_each_of_its_architectures(name: str) -> None:
    for recipe in COMBINATIONS:
        if recipe.task == name:
            short = dataclasses.replace(recipe, steps=3, pretrained=min(recipe.pretrained, 2), watched=())
            outcome = train(short, monitored=False)
            assert not outcome.raised, (recipe.seed, outcome.raised)
            assert outcome.score == outcome.score, recipe.seed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [14, 39])
def test_the_same_seed_makes_the_same_rows(seed: int) -> None:
    first, again = pair(seed)[0], pair(seed)[0]
    assert [packed(row) for row in first] == [packed(row) for row in again]
    assert first[0]["recipe"]["seed"] == seed
    assert not first[0]["raised"]
    assert sum(len(packed(row)) for row in first) < 20_000


@pytest.mark.slow
def test_most_trainings_learn_and_monitors_do_not_change_the_score() -> None:
    learned = []
    for recipe in [recipe for recipe in MANY if recipe.task in ("wine", "moons", "arms") and recipe.steps < 150][:10]:
        outcome = train(recipe, monitored=False)
        assert not outcome.raised, (recipe.seed, outcome.raised)
        learned.append(healthy.learns(recipe, outcome.score, outcome.constant))
    assert sum(learned) >= 7
    assert train(recipe).score == outcome.score


def test_healthy_and_lost_are_shares_of_the_way() -> None:
    recipe = next(recipe for recipe in MANY if recipe.task == "wine")
    best = healthy.table()["wine"]
    assert healthy.learns(recipe, 0.4 + 0.51 * (best - 0.4), 0.4)
    assert not healthy.learns(recipe, 0.4 + 0.49 * (best - 0.4), 0.4)
    assert healthy.lost(0.64, 0.8, 0.2)
    assert not healthy.lost(0.66, 0.8, 0.2)
    assert healthy.lost(float("nan"), 0.8, 0.2)


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(TooLong), limited(0.05):
        while True:
            pass


def test_a_seed_that_was_broken_off_is_run_again(tmp_path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    for seed, rows in ((1, 2), (1, 2), (2, 1), (3, 2)):
        append(path, {"seed": seed, "rows": rows})
    assert done(path) == {1, 2}
    with path.open("ab") as file:
        file.write(packed({"seed": 4, "rows": 1})[:30])
    assert done(path) == {1, 2}
