"""The built-in rules and kinds, gathered from the files that declare them: ``*_rules.py``."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.rulebook import reports_of
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import KINDS

_FILES = [
    import_module(f"{__package__}.{file.name}")
    for file in pkgutil.iter_modules([str(Path(__file__).parent)])
    if file.name.endswith("_rules")
]

KINDS.update((kind.name, kind) for kind in sorted((kind for file in _FILES for kind in file.KINDS), key=lambda kind: kind.rank))

RULES: dict[type[Any], tuple[Rule, ...]] = {}
"""By the report that they read, in the order of causes."""

for _rule in sorted((rule for file in _FILES for rule in file.RULES), key=lambda rule: KINDS[rule.kind].rank):
    for _report in reports_of(_rule):
        RULES[_report] = (*RULES.get(_report, ()), _rule)

ALERT_KINDS: tuple[str, ...] = tuple(KINDS)
"""Every kind that the built-in rules raise, in the order of causes."""


def kinds_of(report: type[Any] | None) -> tuple[str, ...]:
    """The kinds that the built-in rules raise on a class of reports."""
    return tuple(dict.fromkeys(rule.kind for rule in RULES.get(report, ())))  # type: ignore[arg-type]


def limit_of(kind: str, alerts: Iterable[Alert]) -> float:
    """The threshold of a rule: that of its last alert, which the user may have set, or the default."""
    thresholds = [alert.threshold for alert in alerts if alert.kind == kind]
    return thresholds[-1] if thresholds else KINDS[kind].limit if kind in KINDS else 0.0
