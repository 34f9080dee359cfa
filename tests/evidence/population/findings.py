"""What the rules and the causes make of a window, also where it is below the limits: nothing of it reaches the run's own alerts.

A rule is asked again with its limits loosened, one at a time, by the steps of a ladder: what it then finds is kept with its value,
its usual limit, the field that was in the way, and the step of the ladder at which it gave way. Evidence for and against causes is
kept whether it holds or not.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, NamedTuple
from unittest.mock import patch

from lightning_hooks import Alert
from lightning_hooks.declare import cause as causes_file
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.rule import Rule
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.judge.weights import probability_of_cause

LADDER = (1.5, 3.0, 10.0, 100.0, math.inf)
"""By what a limit is multiplied or divided, until its rule finds something."""
MOST_SITES = 6
"""Findings of one rule that are kept: those over the limit first, then the nearest to it."""


Evidence = tuple[str, bool, str, float | None]
Judged = tuple[str, str, str, float, list[Evidence]]


class Finding(NamedTuple):
    """What a rule finds at a site: its value, its usual limit, and its severity as stated.

    ``field`` had to be loosened, by the step ``slack`` of :data:`LADDER` (below 1 where it was divided); "" and 1 where it had not.
    """

    rule: str
    kind: str
    site: str
    value: float
    limit: float
    severity: str
    field: str = ""
    slack: float = 1.0


def findings(report: Any, rules: Iterable[Any]) -> list[Finding]:
    """What rules find in a report that knows those of earlier windows, with their limits and with loosened ones."""
    found: list[Finding] = []
    for rule in rules:
        if isinstance(rule, Rule):
            found += _of_rule(rule, report)
    return found


def _of_rule(rule: Rule, report: Any) -> list[Finding]:
    at: dict[tuple[str, str], Finding] = {}
    for alert in _alerts(rule, report):
        at.setdefault((alert.kind, alert.site), _finding(rule, alert, report))
    numbers = {
        field.name: value
        for field in dataclasses.fields(rule)
        if field.name not in ("times", "of") and type(value := getattr(rule, field.name)) in (int, float) and value
    }
    fewest = {name: type(value)(0) for name, value in numbers.items() if name.startswith("min_")}
    base = _loosened(rule, **fewest) or rule
    for name, value in numbers.items():
        for up in (False, True) if name not in fewest else (False,):
            if not _alerts(_loosened(base, **{name: _moved(rule, name, value, math.inf, up)}), report):
                continue
            for factor in LADDER:
                moved = _moved(rule, name, value, factor, up)
                for alert in _alerts(_loosened(base, **{name: moved}), report):
                    slack = factor if up else 1 / factor
                    one = _finding(rule, alert, report, name, slack)
                    if alert.threshold == moved:
                        one = one._replace(limit=float(value))
                    known = at.get((alert.kind, alert.site))
                    if known is None or _distance(one) < _distance(known):
                        at[alert.kind, alert.site] = one
    return sorted(at.values(), key=_distance)[:MOST_SITES]


def _moved(rule: Rule, name: str, value: float, factor: float, up: bool) -> float:
    largest = 1.0 if name in rule.shares else 1e9
    moved = min(largest, abs(value) * min(factor, 1e9)) if up else abs(value) / factor
    return type(value)(math.copysign(moved, value))


def _distance(finding: Finding) -> tuple[float, float]:
    """How far from its limit: by the ladder, and then by the value."""
    ratio = abs(finding.value / finding.limit) if finding.limit else math.inf
    near = abs(math.log(ratio)) if 0 < ratio < math.inf else 99.0
    step = abs(math.log(finding.slack)) if finding.slack > 0 else math.inf
    return step, near if finding.field else -near


def _loosened(rule: Rule, **fields: float) -> Rule | None:
    try:
        return dataclasses.replace(rule, **fields)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a value that the rule does not take
        return None


def _alerts(rule: Rule | None, report: Any) -> list[Alert]:
    """What a rule yields, as far as it comes: with limits of 0 some divide by them."""
    if rule is None:
        return []
    found: list[Alert] = []
    try:
        history = len(signature(type(rule).__call__).parameters) >= 3
        found.extend(rule(report, report.earlier) if history else rule(report))  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - of limits that nobody sets
        pass
    return found


def _finding(rule: Rule, alert: Alert, report: Any, field: str = "", slack: float = 1.0) -> Finding:
    limits = float(alert.value), float(alert.threshold)
    return Finding(type(rule).__name__, alert.kind, alert.site, *limits, alert.severity, field, slack)


def judged(found: Sequence[Finding], facts: Facts) -> list[Judged]:
    """The causes of each kind that was found, or nearly, judged at the sites that are the most over the limit.

    Each is its name, the kind and the site of the finding, the probability (0 for no cause), and all evidence that was entered.
    """
    nearest: dict[str, Finding] = {}
    for finding in sorted(found, key=_distance):
        nearest.setdefault(finding.kind, finding)
    rows: list[Judged] = []
    entered: list[Evidence] = []

    class Recording(causes_file.CauseEvidence):
        def add(self, holds: bool, strength: str, text: str) -> None:
            entered.append(_evidence(bool(holds), strength, text, facts))
            super().add(holds, strength, text)

    known: set[tuple[str, str]] = set()
    with patch.object(causes_file, "CauseEvidence", Recording):
        for finding in nearest.values():
            alert = Alert(
                finding.kind, finding.site, finding.value, finding.limit,
                facts.flow.epoch, facts.flow.step, finding.severity,  # type: ignore[arg-type]
            )  # fmt: skip
            for one in kind_of(finding.kind).causes:
                if (one.name, finding.site) in known:
                    continue
                known.add((one.name, finding.site))
                entered.clear()
                try:
                    cause = one.judge(alert, facts)
                except Exception:  # noqa: BLE001 - of a finding below the limit it may not know enough
                    continue
                if cause is not None or entered:
                    score = 0.0 if cause is None else round(probability_of_cause(cause.strengths), 2)
                    rows.append((one.name, finding.kind, finding.site, score, list(entered)))
    return rows


def _evidence(holds: bool, strength: str, text: str, facts: Facts) -> Evidence:
    """Its text without numbers and names, whether it holds, how much it says, and its first number."""
    words = text.split()
    names = {word.strip(".,;:()") for word in words} & (facts.modules.keys() | facts.start.keys())
    plain = " ".join("NAME" if word.strip(".,;:()") in names else word for word in words)
    numbers = re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", plain)
    return (re.sub(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?", "#", plain)[:60], holds, strength,
                    float(numbers[0]) if numbers else None)  # fmt: skip


def known(facts: Facts) -> dict[str, float | bool | str]:
    """Facts that are about no alert: numbers of the settings, the start, and what steps gain."""
    rates = facts.rates()
    optimizer = rates[0].optimizer if rates else ""
    learning = facts.flow.learning
    numbers: dict[str, Any] = {
        "stretch": facts.stretch, "first_loss": facts.first_loss,
        "loss": None if facts.flow.loss is None else facts.flow.loss.mean, "step_ratio": facts.step_ratio,
        "usual_norm": facts.usual_norm, "overflows": facts.overflows, "magnified": bool(facts.magnified),
        "rate": max((rate.lr for rate in rates), default=None),
        "update_ratio": facts.usual_ratio(optimizer) if optimizer else None, "clip": facts.setup.clip_norm,
        "precision": facts.precision, "bad_step": facts.bad_step is not None,
    }  # fmt: skip
    for name in ("coherence", "predicted_gain", "gain", "progress", "over_constant", "noise_scale"):
        numbers[name] = None if learning is None else getattr(learning, name)
    inputs = facts.features.inputs.get("training")
    numbers["input_rms"] = None if inputs is None else inputs.rms
    return {name: value for name, value in numbers.items() if value is not None and value == value}


def plain(value: Any) -> Any:
    """As JSON holds it: numbers with four digits, those that are not finite as texts."""
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    return [plain(each) for each in value]
