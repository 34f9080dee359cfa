"""The trainings that cures are measured on: the fault zoo's, the bugs of others, the exam's, each with its score."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch
from lightning.pytorch import Callback, Trainer

from tests.evidence.faults.catalogue import FAULTS, HEALTHY
from tests.evidence.faults.training import QUIET, AlertLog, build, train
from tests.evidence.faults.zoo import Built

LAST = 5
"""Losses whose mean is where a training ended."""
SCORES = ("val_score", "accuracy")
"""The metrics that are scores, of which the larger is better."""


class Trainings(NamedTuple):
    """The trainings of one folder of the evidence.

    Attributes:
        faults: By name, the families with something planted.
        healthy: By name, the families that are healthy.
        build: From a family, a seed and whether the fault is planted to a training.
        score: Trains with some callbacks, and returns the score: the larger the better, NaN where it broke.
        folder: Where they are written.
    """

    faults: Mapping[str, Any]
    healthy: Mapping[str, Any]
    build: Callable[[Any, int, bool], Built]
    score: Callable[[Built, Sequence[Callback]], float]
    folder: Path


def trainings(of: str) -> Trainings:
    """The trainings of ``zoo``, ``bugs`` or ``exam``; of the latter two those of one process whose library is installed."""
    folder = Path(__file__).parents[1]
    if of == "zoo":
        return Trainings(FAULTS, HEALTHY, build, _score_of_zoo, folder / "faults")
    cases: Mapping[str, Any]
    if of == "bugs":
        from tests.evidence.bugs.catalogue import CASES as BUGS

        cases = {name: case for name, case in BUGS.items() if case.processes == 0}
    else:
        from tests.evidence.exam.catalogue import CASES as EXAM

        cases = {name: case for name, case in EXAM.items() if case.installed}
    faults, healthy = ({name: case for name, case in cases.items() if case.healthy is well} for well in (False, True))
    return Trainings(faults, healthy, _built, _score_of_others, folder / of)


def _built(case: Any, seed: int, planted: bool = True) -> Built:
    torch.manual_seed(seed)
    built: Built = case.build() if case.healthy else case.build(planted)
    return built


def _score_of_zoo(built: Built, callbacks: Sequence[Callback] = ()) -> float:
    outcome, _ = train(built, callbacks)
    return outcome.score if outcome.finite else torch.nan


def _score_of_others(built: Built, callbacks: Sequence[Callback] = ()) -> float:
    """The last metric that is a score; minus the mean of the last training losses where there is none."""
    log = next((one for one in callbacks if isinstance(one, AlertLog)), None) or AlertLog()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(**{**QUIET, **built.kwargs}, callbacks=[log, *(one for one in callbacks if one is not log)])
        try:
            trainer.fit(built.module, **built.data)
        except ValueError:  # a library's own check of its numbers
            return torch.nan
    if not all(bool(parameter.isfinite().all()) for parameter in built.module.parameters()):
        return torch.nan
    known = [trainer.callback_metrics[name].item() for name in SCORES if name in trainer.callback_metrics]
    return known[0] if known else -statistics.fmean(loss.item() for loss in log.losses[-LAST:])
