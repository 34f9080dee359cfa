"""The weights of what speaks for and against a problem, as measured on trainings whose truth is known.

``judge.json`` holds them; ``python -m tests.evidence.judge.fit`` writes it. The probability of a problem is the logistic function
of the sum of the weights of what holds: a logistic regression whose weights of single kinds and causes are pulled to 0, so that
what was seen in few trainings is as probable as others of its class.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Record(NamedTuple):
    """How alerts of a kind did in the trainings that the weights were fitted on.

    Attributes:
        right: Trainings that were harmed, and in which it was raised.
        wrong: Healthy trainings in which it was.
        date: When that was measured.
    """

    right: int
    wrong: int
    date: str

    @property
    def text(self) -> str:
        """It in a sentence."""
        of = self.right + self.wrong
        return f"{self.right} of the {of} training{'s' * (of != 1)} with such an alert were harmed ({self.date})"


def probability(evidence: Iterable[str]) -> float:
    """How probable it is that a training with this evidence is harmed, where one in five is.

    Args:
        evidence: What holds, by name.

    Returns:
        From 0 to 1.
    """
    stored = _stored()
    total = stored["intercept"] + sum(weight(name) for name in evidence)
    return 1 / (1 + math.exp(-total))


def probability_of_cause(strengths: Iterable[str]) -> float:
    """How probable a cause is, if there is a problem that may have it.

    Args:
        strengths: How much each piece of evidence says, of :data:`~lightning_hooks.declare.cause.STRENGTHS`.

    Returns:
        From 0 to 1.
    """
    stored = _stored()["causes"]
    return 1 / (1 + math.exp(-stored["intercept"] - sum(stored[strength] for strength in strengths)))


def weight(name: str) -> float:
    """What one piece of evidence adds to the log-odds; 0 for what was in no training."""
    return float(_stored()["weights"].get(name, (0.0,))[0])


def record_of(kind: str) -> Record | None:
    """The record of a kind; None for one that was in no training."""
    stored = _stored()
    found = stored["kinds"].get(kind)
    return None if found is None else Record(found[0], found[1], stored["date"])


@cache
def _stored() -> dict[str, Any]:
    known: dict[str, Any] = json.loads(files("lightning_hooks.judge").joinpath("judge.json").read_text(encoding="utf-8"))
    return known
