"""Excuses: named conditions under which an alert is only an info, or none, applied by the rule book to what rules find.

A rule names its excuses (:attr:`Rule.excuses`). Those of several
diagnostics are in :mod:`lightning_hooks.diagnostics.excuses`, those of one rule are in its file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
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
        holds: Whether it does, given the rule, the alert, its report and the reports before; a text is shown as the reason.
        lowers_to: The severity that is left; None for no alert.
    """

    name: str
    because: str
    holds: Callable[[Any, Alert, Any, Sequence[Any]], bool | str]
    lowers_to: Severity | None = "info"


def excused(rule: Any, alert: Alert, report: Any, history: Sequence[Any]) -> Alert | None:
    """An alert as the first excuse of its rule that holds leaves it; a severity that the user has set stays.

    Args:
        rule: The rule that found it.
        alert: What it found.
        report: The report that it found it in.
        history: Those of the windows before, oldest first.

    Returns:
        The alert, with the name of the excuse in its diagnosis; None for no alert.
    """
    for excuse in rule.excuses:
        lower = excuse.lowers_to
        if lower is not None and (rule.severity is not None or SEVERITIES.index(lower) >= SEVERITIES.index(alert.severity)):
            continue
        found = excuse.holds(rule, alert, report, history)
        if found and lower is None:
            return None
        if found:
            why = f"It is {'an' if lower == 'info' else 'a'} {lower}: {found if isinstance(found, str) else excuse.because}"
            return dataclasses.replace(alert, severity=lower, diagnosis=f"{alert.diagnosis} {why} ({excuse.name}).".strip())
    return alert
