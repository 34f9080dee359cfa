"""What there is to say about a kind of alert, or a cause, from its declaration: for the command line and the documentation."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import textwrap
from typing import Any

from lightning_hooks.alerts import RULES
from lightning_hooks.declare.cause import PossibleCause
from lightning_hooks.declare.kinds import ALWAYS, KINDS
from lightning_hooks.declare.rule import Rule, grouped
from lightning_hooks.judge.weights import record_of

_OF_EVERY_RULE = {field.name for field in dataclasses.fields(Rule)}


def rules_that_raise(kind: str) -> list[Rule]:
    """The built-in rules that raise a kind, each once."""
    return list(dict.fromkeys(rule for rules in RULES.values() for rule in rules if rule.kind == kind))


def thresholds_of(rule: Rule) -> dict[str, Any]:
    """The fields that a rule adds to those of every rule, with their values."""
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule) if field.name not in _OF_EVERY_RULE}


def documented(rule: type[Any]) -> tuple[str, dict[str, str]]:
    """A rule's docstring: its text, and what it says of each field."""
    text = re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", inspect.getdoc(rule) or "").replace("``", "`")
    about, _, listed = text.partition("\n\nAttributes:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", listed, re.MULTILINE)
    return " ".join(about.split("\n")).replace("  ", "\n\n"), {name: " ".join(words.split()) for name, words in entries}


def formula(kind: str) -> str:
    """When a kind is raised, with the default thresholds."""
    return _with_defaults(kind, KINDS[kind].formula)


def severities(kind: str) -> str:
    """How severe alerts of a kind are, with the default thresholds."""
    known = KINDS[kind]
    if known.inconclusive == ALWAYS:
        return "info"
    usual = known.severity_of(0.0)
    most = f"; critical at {known.critical:.0%}" if known.critical and usual == "warning" else ""  # of a share
    return usual + most + f"; info {_with_defaults(kind, known.inconclusive)}" * bool(known.inconclusive)


def _with_defaults(kind: str, text: str) -> str:
    rules = {type(rule).__name__: rule for rule in rules_that_raise(kind)}

    def value(found: re.Match[str]) -> str:
        default = getattr(rules[found[1]], found[2])
        return " to ".join(f"{part:g}" for part in default) if isinstance(default, tuple) else f"{default:g}"

    return re.sub(r"\{(\w+)\.(\w+)\}", value, text)


def explain(name: str) -> list[str]:
    """A kind of alert, or a cause, in lines for a terminal.

    Raises:
        ValueError: If it is neither; with the closest names.
    """
    causes = _causes()
    if name in KINDS:
        return _of_kind(name)
    if name in causes:
        cause, kinds = causes[name]
        steps = (f"  - {step}." for step in cause.remedies)
        return [f"{cause.name}: {cause.title}", "", "Try:", *steps, "", *_wrapped(f"Explains: {', '.join(kinds)}.")]
    known = [*KINDS, *causes]
    near = difflib.get_close_matches(name, known, 3, 0.3) or known
    raise ValueError(f"no built-in rule raises {name!r}, and no cause has that name; the closest names are {', '.join(near)}.")


def _causes() -> dict[str, tuple[PossibleCause, list[str]]]:
    """The causes by name, each with the kinds that may have it."""
    found = grouped((one.name, (one, kind.name)) for kind in KINDS.values() for one in kind.causes)
    return {name: (pairs[0][0], [kind for _, kind in pairs]) for name, pairs in found.items()}


def _of_kind(kind: str) -> list[str]:
    known = KINDS[kind]
    lines = [
        *(f"{kind}: {known.title}", "", *_wrapped(known.meaning), "", *_wrapped(f"Severity: {severities(kind)}."), ""),
        *(*textwrap.indent(formula(kind), "  ").splitlines(), "", "Try:", *(f"  - {step}." for step in known.advice)),
        *["", "Causes that are judged, and what is done about them:"] * bool(known.causes),
    ]
    for one in known.causes:
        lines += _wrapped(f"{one.name}: {one.title}. Remedies: {'; '.join(one.remedies)}.", "  ", "      ")
    for rule in rules_that_raise(kind):
        _, explained = documented(type(rule))
        lines += ["", f"Thresholds of {type(rule).__name__}:"] * bool(thresholds_of(rule))
        for name, default in thresholds_of(rule).items():
            lines += _wrapped(f"{name} = {default!r}: {explained.get(name, '')}", "  ", "      ")
    record = record_of(kind)
    return [*lines, "", *_wrapped(f"Record: {record}.")] if record else lines


def _wrapped(text: str, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=others, break_long_words=False)
