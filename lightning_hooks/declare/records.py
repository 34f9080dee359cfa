"""The record of each kind of alert: how often it was right in the trainings of the evidence, and how often its remedies cured.

``records.json`` and ``cures.json`` hold the numbers. ``python -m tests.evidence.records`` and ``python -m
tests.evidence.cure.records`` write them from the results of the evidence runs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

FEWEST = 5
"""Alerts in trainings that nothing was tuned on from which a kind's precision is known; with fewer it is unproven."""
PRECISE = 0.8
"""Share of them that must be right; a soft kind below it is an info."""


@dataclass(frozen=True, slots=True)
class Record:
    """How a kind of alert did in the trainings of the evidence, as a warning or a critical.

    Attributes:
        alarms: Healthy trainings in which it was raised.
        healthy: Healthy trainings.
        found: Faults that it names and in which it was raised in time.
        faults: Faults that it names.
        right: Of families that nothing was tuned on: faults that it names and in which it was raised.
        wrong: Of such families: healthy trainings in which it was raised.
        date: When that was measured.
        cured: Of the trainings harmed by a fault whose remedies were this kind's: those that its first or second remedy cured.
        treated: How many these are; 0 where no cure was tried.
        cures_date: When that was measured.
    """

    alarms: int
    healthy: int
    found: int
    faults: int
    right: int
    wrong: int
    date: str
    cured: int = 0
    treated: int = 0
    cures_date: str = ""

    @property
    def precision(self) -> float | None:
        """The share of alerts that are right, in families that nothing was tuned on; None where it is unproven."""
        alerts = self.right + self.wrong
        return self.right / alerts if alerts >= FEWEST else None

    @property
    def text(self) -> str:
        """The record in a sentence."""
        shown = "unproven" if self.precision is None else f"{self.precision:.0%}"
        trainings = f"training{'s' * (self.treated > 1)}"
        cure = f"; its remedy cured {self.cured} of {self.treated} {trainings} ({self.cures_date})" if self.treated else ""
        return (
            f"a warning in {self.alarms} of {self.healthy} healthy trainings; it found {self.found} of the {self.faults} faults "
            f"that it names; precision on families that nothing was tuned on: {shown} ({self.date}){cure}"
        )


def record_of(kind: str) -> Record | None:
    """The record of a kind; None for a user's own."""
    known, cures = _records(), _cures()
    numbers = known["kinds"].get(kind)
    if numbers is None:
        return None
    alarms, found, faults, right, wrong = numbers
    cured, treated = cures["kinds"].get(kind, (0, 0))
    return Record(alarms, known["healthy"], found, faults, right, wrong, known["date"], cured, treated, cures["date"])


@cache
def _records() -> dict[str, Any]:
    return _stored("records.json")


@cache
def _cures() -> dict[str, Any]:
    return _stored("cures.json")


def _stored(name: str) -> dict[str, Any]:
    known: dict[str, Any] = json.loads(files("lightning_hooks.declare").joinpath(name).read_text(encoding="utf-8"))
    return known
