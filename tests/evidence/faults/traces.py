"""What a rule of a peer says of a training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.evidence.faults.recorder import Array

ONCE = np.inf  # the score of what is not a matter of degree


@dataclass(frozen=True)
class Trace:
    """What one rule of a peer says of a training.

    Attributes:
        rule: Its name.
        kinds: The kinds of alert, in our words, that it stands for.
        scores: Shape ``(batches, sites)``; above 1 it fires.
        sites: The names of the columns; empty strings where the rule names no layer.
    """

    rule: str
    kinds: tuple[str, ...]
    scores: Array
    sites: list[str]


def of(rule: str, kinds: tuple[str, ...], scores: Array, sites: list[str] | None = None) -> Trace:
    """A trace of scores per batch, or per batch and site; what was not seen is 0."""
    scores = np.asarray(scores, dtype=float)
    if scores.ndim == 1:
        scores, sites = scores[:, None], [""]
    return Trace(rule, kinds, np.nan_to_num(scores, nan=0.0, posinf=ONCE, neginf=0.0), sites or [""])


def where(condition: Array) -> Array:
    """The scores of a rule that is not a matter of degree."""
    return np.where(condition, ONCE, 0.0)
