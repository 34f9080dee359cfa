"""Causes: hypotheses about an alert, and what speaks for and against them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lightning_hooks.declare.remedy import Remedy

DECISIVE = 0.5
"""The score from which on a cause is named first, in place of a list of common causes."""
MOST_CAUSES = 3
"""Causes of one alert."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause of an alert.

    Attributes:
        name: The name of the hypothesis, such as ``rate_too_high``.
        statement: It in a sentence, with its numbers.
        score: How much speaks for it, from 0 to 1; from 0.5 on it is named first.
        evidence_for: What speaks for it, as clauses. ``for`` in ``health.json``.
        evidence_against: What speaks against it. ``against`` in ``health.json``.
        remedies: What to do, the most likely first.
    """

    name: str
    statement: str
    score: float
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def decisive(self) -> bool:
        """Whether it is named first."""
        return self.score >= DECISIVE


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A cause that alerts of a kind may have.

    Attributes:
        name: Its name.
        title: What it supposes, as a clause.
        remedies: What is done about it, in words, for the documentation.
        judge: Given an alert and the facts, the cause with its evidence; None where nothing speaks for it.
    """

    name: str
    title: str
    remedies: tuple[str, ...]
    judge: Callable[[Any, Any], Cause | None]


def hypothesis(title: str, *remedies: str) -> Callable[[Callable[[Any, Any], Cause | None]], Hypothesis]:
    """Declare a hypothesis by the function that judges it, whose name becomes its own."""
    return lambda judge: Hypothesis(judge.__name__, title, remedies, judge)


class Evidence:
    """Collects what speaks for and against a cause, with weights that add up to its score."""

    def __init__(self) -> None:
        self.score = 0.0
        self._for: list[str] = []
        self._against: list[str] = []

    def add(self, holds: bool, weight: float, text: str) -> None:
        """Enter something that speaks for it, or, with a weight below 0, against it, if it holds."""
        if holds:
            self.score += weight
            (self._for if weight > 0 else self._against).append(text)

    def cause(self, name: str, statement: str, *remedies: Remedy) -> Cause | None:
        """The cause; None if nothing speaks for it, or more against it."""
        if not self._for or self.score <= 0:
            return None
        return Cause(name, statement, round(min(self.score, 1.0), 2), tuple(self._for), tuple(self._against), remedies)


def ranked(
    alert: Any, facts: Any, hypotheses: Iterable[Hypothesis], on_fault: Callable[[str, Exception], None] | None = None
) -> tuple[Cause, ...]:
    """The causes of an alert, best first.

    Args:
        alert: The alert.
        facts: What is known.
        hypotheses: Those of its kind.
        on_fault: Called with the name of a hypothesis that raised, and the error; the others go on. None lets it raise.
    """
    found: list[Cause] = []
    for one in hypotheses:
        try:
            cause = one.judge(alert, facts)
        except Exception as error:
            if on_fault is None:
                raise
            on_fault(one.name, error)
            continue
        if cause is not None:
            found.append(cause)
    return tuple(sorted(found, key=lambda cause: -cause.score)[:MOST_CAUSES])
