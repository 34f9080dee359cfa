"""Causes with their probabilities."""

from __future__ import annotations

from lightning_hooks import Alert
from lightning_hooks.declare.cause import Cause, PossibleCause
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.judge.diagnosis import weighed


def judged(one: PossibleCause, alert: Alert, facts: Facts) -> Cause | None:
    """A cause with its probability, if something speaks for it."""
    cause = one.judge(alert, facts)
    return None if cause is None else weighed(cause)
