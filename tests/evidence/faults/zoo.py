"""What the zoo is made of: a training, what has to be found in it, and the lists of all of them."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning.pytorch import LightningModule

SEEDS = (0, 1, 2, 3, 4)
CALIBRATION = (0, 1)
"""Seeds on which thresholds may be set. The others are for the report: nobody looks at them to choose a number."""


@dataclass(frozen=True)
class Expected:
    """What is wrong with a training, and what a right diagnosis says.

    Attributes:
        kinds: The kinds of alert that are right; more than one where a fault truly is several things at once (a net whose
            learning rate kills its rectifiers has both ``dead`` and ``update_too_large``). Empty for a healthy training.
        sites: Glob patterns of the modules and parameters that are right; None where no layer is at fault.
        batch: The training batch, counted over the whole training, at which the fault first acts.
        epoch: The epoch of that batch.
    """

    kinds: tuple[str, ...] = ()
    sites: tuple[str, ...] | None = None
    batch: int | None = 0
    epoch: int = 0

    def right_site(self, site: str) -> bool:
        """Whether a site is one of those at fault."""
        return self.sites is not None and any(fnmatch.fnmatchcase(site, pattern) for pattern in self.sites)


class Built(NamedTuple):
    """A training, ready for ``Trainer(**kwargs).fit(module, **data)``."""

    module: LightningModule
    data: dict[str, Any]
    kwargs: dict[str, Any]
    expected: Expected


@dataclass(frozen=True)
class Outcome:
    """What became of a training.

    Attributes:
        score: The last validation score: accuracy, or the explained variance; larger is better. NaN if it broke.
        first_loss: The mean training loss of the first five batches.
        last_loss: The mean training loss of the last five batches; NaN or inf if it broke.
        finite: Whether all weights were finite at the end.
    """

    score: float
    first_loss: float
    last_loss: float
    finite: bool


Build = Callable[..., Built]


@dataclass(frozen=True)
class Case:
    """One family of trainings: the same story for every seed, with other data orders, weights, layers.

    Attributes:
        name: Its name in the table.
        build: ``build(seed)``; of a fault also ``build(seed, planted=False)``, the same training without it.
        family: MLP, CNN, ResNet, LSTM, RNN, transformer, VAE or GAN.
        story: One sentence for the table.
        reaches: The validation score that a healthy training (of a fault: its twin without the fault) at least reaches.
        hurts: How the planted fault shows, judged without any monitor: given the fault's outcome and its twin's. None
            where the fault does not show in the score; then ``tests/evidence/faults/test_zoo.py`` looks at the planted property.
    """

    name: str
    build: Build
    family: str
    story: str
    reaches: float
    hurts: Callable[[Outcome, Outcome], bool] | None = field(default=None, repr=False)

    @property
    def healthy(self) -> bool:
        """Whether nothing is planted."""
        return self.name in HEALTHY


FAULTS: dict[str, Case] = {}
HEALTHY: dict[str, Case] = {}


def worse(by: float) -> Callable[[Outcome, Outcome], bool]:
    """The final score is worse than the twin's by at least so much, or there is none."""
    return lambda faulty, clean: not faulty.score > clean.score - by


def broken(faulty: Outcome, clean: Outcome) -> bool:
    """Weights or loss end as NaN or infinite."""
    return clean.finite and not (faulty.finite and abs(faulty.last_loss) < float("inf"))


def fault(family: str, story: str, *, reaches: float, hurts: Callable[[Outcome, Outcome], bool] | None) -> Callable[[Build], Build]:
    """Enter a function ``build(seed, planted=True)`` into the zoo, under its name."""

    def enter(build: Build) -> Build:
        FAULTS[build.__name__] = Case(build.__name__, build, family, story, reaches, hurts)
        return build

    return enter


def healthy(family: str, story: str, *, reaches: float) -> Callable[[Build], Build]:
    """Enter a function ``build(seed)`` among the healthy trainings, under its name."""

    def enter(build: Build) -> Build:
        HEALTHY[build.__name__] = Case(build.__name__, build, family, story, reaches)
        return build

    return enter
