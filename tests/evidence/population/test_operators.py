"""Each operator applies somewhere, changes the training, and lets it run."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from functools import cache
from itertools import product

import pytest
import torch

from lightning_hooks.declare.kinds import KINDS
from tests.evidence.population.grammar import draw
from tests.evidence.population.loops import fit
from tests.evidence.population.operators import OPERATORS
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.tasks import TASKS
from tests.evidence.population.training import STAGES, Training, build

pytestmark = pytest.mark.filterwarnings("ignore")

ONLY_JUDGED = {"validation_in_other_units", "evaluated_in_train_mode", "average_that_does_not_follow", "statistics_that_stay"}
"""Those that change no weight, but what is validated."""
OTHER_NAMES = {
    "ordered_data", "strong_augmentation", "viewed_outputs",
    "norm_missing", "shortcut_missing", "train_mode_in_evaluation", "average_too_slow",
}  # fmt: skip
"""Causes that the package has no name for."""


def short(seed: int, task: str = "digits") -> Recipe:
    """A drawn recipe, of a few samples and steps."""
    drawn = draw(seed, task)
    few = {"samples": 64, "batch_size": 16, "steps": 6, "pretrained": min(drawn.pretrained, 3), "imbalance": 1.0}
    return replace(drawn, **few, clip=drawn.clip / 50, validate=True, warmup=0.0, watched=())


@cache
def places() -> dict[str, Recipe]:
    """For each operator a recipe that it applies to."""
    found: dict[str, Recipe] = {}
    for seed, task in product(range(20), TASKS):
        left = OPERATORS.keys() - found.keys()
        recipe = short(seed, task) if left else None
        left -= set() if task in ("arms", "houses", "denoising") else ONLY_JUDGED  # whose score any change changes
        found |= {name: recipe for name in left if OPERATORS[name].applies(recipe)}
    return found


@cache
def clean(recipe: Recipe) -> tuple[torch.Tensor, float]:
    """The twin's last weights, and its score."""
    training, _ = build(recipe)
    return fitted(training)


def fitted(training: Training) -> tuple[torch.Tensor, float]:
    torch.set_num_threads(1)
    score = fit(training)
    return torch.cat([p.detach().float().flatten() for p in training.model.parameters()]), score


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_changes_a_training(name: str) -> None:
    recipe = places()[name]
    weights, score = clean(recipe)

    training, sites = build(recipe, (OPERATORS[name],))
    changed, judged = fitted(training)

    same = changed.shape == weights.shape and torch.equal(changed, weights)
    if name in ONLY_JUDGED:
        assert judged != score
    else:
        assert not same
    named = [each for each, _ in (*training.model.named_modules(), *training.model.named_parameters())]
    patterns = sites[name]
    assert patterns is None or any(fnmatch.fnmatchcase(each, pattern) for each in named for pattern in patterns)


@pytest.mark.parametrize("name", ["rate_too_high", "sample_with_nan", "one_layer_starts_large"])
def test_an_operator_is_the_same_each_time(name: str) -> None:
    first, second = (fitted(build(places()[name], (OPERATORS[name],))[0])[0].nan_to_num(9) for _ in range(2))

    assert torch.equal(first, second)


def test_operators_say_what_they_are() -> None:
    causes = {one.name for kind in KINDS.values() for one in kind.causes}

    assert len(OPERATORS) >= 80
    for name, operator in OPERATORS.items():
        assert operator.name == name
        assert operator.group in STAGES
        assert operator.stage in STAGES
        assert operator.undo[0].islower()
        assert not operator.undo.endswith(".")
        assert set(operator.causes) - causes <= OTHER_NAMES, name
