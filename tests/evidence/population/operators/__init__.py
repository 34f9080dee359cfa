"""The faults that are planted, by group: each a function that changes a training, with its cause and what undoes it."""

from __future__ import annotations

from tests.evidence.population.operators import data, loss, model, optimizer, schedule, training  # noqa: F401 - they enter them
from tests.evidence.population.operators.fault import OPERATORS, Fault

__all__ = ["OPERATORS", "Fault"]
