"""The built-in rules and kinds, gathered from the files of diagnostics that declare them: ``rules.py`` and ``*_rules.py``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from lightning_hooks.declare.kinds import KINDS, STATES
from lightning_hooks.declare.rule import Rule
from lightning_hooks.declare.rulebook import reports_of
from lightning_hooks.diagnostics import modules

FILES = modules("rules")
"""The files of rules, each with its ``KINDS``."""

_kinds = sorted((kind for file in FILES for kind in file.KINDS), key=lambda kind: STATES.index(kind.states))
KINDS.update((kind.name, kind) for kind in _kinds)

ALERT_KINDS: tuple[str, ...] = tuple(KINDS)
"""Every kind that the built-in rules raise, facts first, then symptoms, then the course of the loss."""

RULES: dict[type[Any], tuple[Rule, ...]] = {}
"""By the report that they read, in the order of their kinds."""


def declared_in(file: ModuleType) -> list[Rule]:
    """The rules that a file declares, in order."""
    classes = [found for found in vars(file).values() if isinstance(found, type) and issubclass(found, Rule)]
    return [rule() for rule in classes if rule.__module__ == file.__name__]


for _rule in sorted((rule for file in FILES for rule in declared_in(file)), key=lambda rule: ALERT_KINDS.index(rule.kind)):
    for _report in reports_of(_rule):
        RULES[_report] = (*RULES.get(_report, ()), _rule)


def rules_of(report: type[Any] | None) -> tuple[Rule, ...]:
    """The built-in rules of a class of reports."""
    return RULES.get(report, ())  # type: ignore[arg-type]


def kinds_of(report: type[Any] | None) -> tuple[str, ...]:
    """The kinds that the built-in rules raise on a class of reports."""
    return tuple(dict.fromkeys(rule.kind for rule in rules_of(report)))
