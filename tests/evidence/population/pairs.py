"""A drawn training and its mutant, recorded: the rows of one seed."""

from __future__ import annotations

import contextlib
import logging
import random
import resource
import signal
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from tests.evidence.population import healthy
from tests.evidence.population.grammar import draw
from tests.evidence.population.loops import fit
from tests.evidence.population.operators import OPERATORS, Fault
from tests.evidence.population.recipe import Recipe
from tests.evidence.population.record import recording, row_of
from tests.evidence.population.training import AGAIN, build

LIMIT = 30.0
"""Seconds of processor time that a training may take."""
TWICE = 0.08
"""Share of mutants of two operators."""


class TooLong(BaseException):
    """A training has reached the limit. No Exception: monitors handle those of hooks."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Ends what takes more processor time."""

    def end(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@dataclass(frozen=True)
class Outcome:
    """What became of a training: its score, the best constant answer's, what it raised, the sites at fault, what was kept."""

    score: float
    constant: float
    raised: str
    sites: tuple[str, ...] | None
    kept: dict[str, Any]


def drawn_operators(recipe: Recipe) -> tuple[Fault, ...]:
    """One of those that apply, each as likely; sometimes two. Another operator changes only what it is drawn for."""
    dice = random.Random(f"operators {recipe.seed}")
    names = sorted(OPERATORS, key=lambda name: random.Random(f"{name} {recipe.seed}").random())
    wanted = 2 if dice.random() < TWICE else 1
    found: list[Fault] = []
    for name in names:
        if len(found) < wanted and OPERATORS[name].applies(recipe):
            found.append(OPERATORS[name])
    return tuple(found)


def train(recipe: Recipe, operators: tuple[Fault, ...] = (), monitored: bool = True) -> Outcome:
    """Train once, from the recipe alone; what raises or takes too long has no score."""
    torch.set_num_threads(1)
    score, constant, raised, sites = float("nan"), 0.0, "", None
    recorder, callbacks = recording(**dict(recipe.watched)) if monitored else (None, [])
    logger = logging.getLogger("lightning_hooks")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            with limited(LIMIT):
                training, places = build(recipe, operators)
                constant = training.data.constant
                patterns = [pattern for of in places.values() for pattern in of or ()]
                sites = tuple(f"model.{pattern}" for pattern in patterns) or None
                score = fit(training, callbacks)
        except TooLong:
            raised = "TooLong"
        except Exception as error:  # noqa: BLE001 - of a mutant, also of the package: it is kept
            raised = f"{type(error).__name__}: {error}"[:200]
        finally:
            logger.setLevel(level)
    return Outcome(score, constant, raised, sites, {} if recorder is None else recorder.row())


def row(recipe: Recipe, outcome: Outcome, operators: tuple[Fault, ...], **more: Any) -> dict[str, Any]:
    """As the table has it."""
    return row_of(
        "population", recipe.task, recipe.seed, outcome.kept,
        operators=[o.name for o in operators], groups=[o.group for o in operators],
        causes=[cause for o in operators for cause in o.causes], sites=outcome.sites,
        score=outcome.score, constant=outcome.constant, raised=outcome.raised, recipe=recipe.plain(), **more,
    )  # fmt: skip


def pair(seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of a seed, healthy and mutant, and the seconds that they took, which are no part of the record.

    A drawn training that does not learn has no mutant. A mutant that loses is trained again with another seed, as its twin is;
    whether it is harmful is not known where that does not learn.
    """
    recipe = draw(seed)
    start = time.process_time()
    twin = train(recipe)
    seconds: dict[str, Any] = {"seed": seed, "healthy": round(time.process_time() - start, 2)}
    learns = healthy.learns(recipe, twin.score, twin.constant)
    rows = [row(recipe, twin, (), healthy=learns)]
    if learns and (operators := drawn_operators(recipe)):
        start = time.process_time()
        mutant = train(recipe, operators)
        seconds["mutant"] = round(time.process_time() - start, 2)
        harmful: bool | None = healthy.lost(mutant.score, twin.score, twin.constant)
        if harmful:
            again = replace(recipe, seed=seed + AGAIN)
            clean, worse = train(again, monitored=False), train(again, operators, monitored=False)
            known = healthy.learns(again, clean.score, clean.constant)
            harmful = healthy.lost(worse.score, clean.score, clean.constant) if known else None
        rows.append(row(recipe, mutant, operators, healthy=True, harmful=harmful, twin=twin.score))
    seconds["all"] = round(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]), 1)
    return rows, seconds
