"""Excuses: named conditions under which an alert is only an info, or none, applied by the rule book to what rules find.

A rule names its excuses (:attr:`Rule.excuses`). Those of several
diagnostics are in :mod:`lightning_hooks.diagnostics.excuses`, those of one rule are in its file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import SEVERITIES, Severity


@dataclass(frozen=True, slots=True)
class Excuse:
    """A condition under which an alert is less severe than its rule says.

    Attributes:
        name: Its name, which is shown with the alert that it lowers.
        because: Why, as a clause.
        holds: Whether it does, given the rule, the alert and its report, which knows those before; a text is shown as the reason.
        lowers_to: The severity that is left; None for no alert.
    """

    name: str
    because: str
    holds: Callable[[Any, Alert, Any], bool | str]
    lowers_to: Severity | None = "info"


def excused(rule: Any, alert: Alert, report: Any) -> Alert | None:
    """An alert as the first excuse of its rule that holds leaves it; a severity that the user has set stays.

    Args:
        rule: The rule that found it.
        alert: What it found.
        report: The report that it found it in.

    Returns:
        The alert, with the name of the excuse in its diagnosis; None for no alert.
    """
    for excuse in rule.excuses:
        lower = excuse.lowers_to
        if lower is not None and (rule.severity is not None or SEVERITIES.index(lower) >= SEVERITIES.index(alert.severity)):
            continue
        found = excuse.holds(rule, alert, report)
        if found:
            return None if lower is None else lowered(alert, excuse, found)
    return alert


def lowered(alert: Alert, excuse: Excuse, why: bool | str = True) -> Alert:
    """An alert as an excuse that holds leaves it; a text in ``why`` is shown as the reason."""
    assert excuse.lowers_to is not None
    left = f"It is {'an' if excuse.lowers_to == 'info' else 'a'} {excuse.lowers_to}"
    reason = f"{left}: {why if isinstance(why, str) else excuse.because} ({excuse.name})."
    return dataclasses.replace(alert, severity=excuse.lowers_to, diagnosis=f"{alert.diagnosis} {reason}".strip())
