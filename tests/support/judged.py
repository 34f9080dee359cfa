"""What a rule book makes of a rule: its alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_hooks.alerts import Alert, Rule, RuleBook


def judged(rule: Rule, report: Any, history: Sequence[Any] = ()) -> list[Alert]:
    """The alerts of one rule on a report."""
    return [candidate.alert for candidate in RuleBook([rule]).judge(report.after(history))]
