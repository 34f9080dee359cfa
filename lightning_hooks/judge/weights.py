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
from typing import Any


def probability(evidence: Iterable[str]) -> float:
    """How probable it is that a training with this evidence is harmed, where one in five is.

    Returns:
        From 0 to 1.
    """
    stored = _stored()
    weights = stored["weights"]  # what each adds to the log-odds; nothing for what was in no training
    total = stored["intercept"] + sum(float(weights.get(name, (0.0,))[0]) for name in evidence)
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


def record_of(kind: str) -> str:
    """How alerts of a kind did in the trainings that the weights were fitted on, as a clause; empty for one that was in none."""
    stored = _stored()
    if kind not in stored["kinds"]:
        return ""
    right, wrong = stored["kinds"][kind][:2]  # trainings that were harmed, and healthy ones, in which it was raised
    of = right + wrong
    return f"{right} of the {of} training{'s' * (of != 1)} with such an alert were harmed ({stored['date']})"


@cache
def _stored() -> dict[str, Any]:
    return dict(json.loads(files("lightning_hooks.judge").joinpath("judge.json").read_text(encoding="utf-8")))
