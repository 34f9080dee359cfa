"""What is wrong with a run, since when, and what to try: the first thing a reader needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lightning_hooks.alerts.alert import Alert
from lightning_hooks.alerts.kinds import inside_a_sentence
from lightning_hooks.health.run import Recorded, Run
from lightning_hooks.plots.names import shortened
from lightning_hooks.plots.series import TABLES

Status = Literal["critical", "warning", "healthy", "unknown"]
GRAVITY = {"critical": 0, "warning": 1, "info": 2}

URGENT = ("nonfinite", "exploding", "dead", "vanishing")
"""What is told first where several kinds are equally grave: what breaks the rest of training, then what stops a layer."""


@dataclass(frozen=True, slots=True)
class Course:
    """One alert over the epochs.

    Attributes:
        alert: As it last was.
        prefix: Of the monitor that raised it.
        severity: The gravest it was in its last stretch.
        since: The first epoch of the last stretch of epochs with it.
        until: The last epoch with it.
        lasts: Whether that is the run's last.
        epochs: All epochs with it.
    """

    alert: Alert
    prefix: str
    severity: str
    since: int
    until: int
    lasts: bool
    epochs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """Alerts of one kind that are told together.

    Attributes:
        kind: Of the alerts.
        title: The kind in a few plain words.
        severity: The gravest among them.
        sites: Where, in the order in which they are told.
        since: The first epoch.
        until: The last.
        lasts: Whether the run ended with it.
        seen: What was seen at the first site, and its likely cause.
        advice: What to try, as short imperatives; may be empty.
        consequences: What follows from it, as ``kind at site``.
    """

    kind: str
    title: str
    severity: str
    sites: tuple[str, ...]
    since: int
    until: int
    lasts: bool
    seen: str
    advice: tuple[str, ...]
    consequences: tuple[str, ...] = ()

    @property
    def what(self) -> str:
        """The kind in plain words, as in the middle of a sentence."""
        return inside_a_sentence(self.title)

    @property
    def where(self) -> str:
        """The first site, and how many more."""
        return shortened(self.sites[0], 60) + (f" and {len(self.sites) - 1} more" if len(self.sites) > 1 else "")

    @property
    def when(self) -> str:
        """Since when, or from when to when."""
        if self.lasts:
            return f"since epoch {self.since}"
        return f"in epoch {self.since}" if self.since == self.until else f"in epochs {self.since} to {self.until}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a run.

    Attributes:
        status: ``critical``, ``warning``, ``healthy``, or ``unknown`` if nothing was reported.
        headline: It in a sentence.
        details: What must be known beside it, a sentence each.
        findings: What is wrong, gravest and causes first; then what was wrong and passed; then what is worth knowing.
    """

    status: Status
    headline: str
    details: tuple[str, ...]
    findings: tuple[Finding, ...]


def courses(run: Run) -> list[Course]:
    """Follow every alert over the epochs, in the order in which the monitors tell them."""
    found: list[Course] = []
    last = max(run.epochs, default=-1)
    for recorded in run.monitors:
        found += _of_monitor(recorded, last)
    return found


def judge(run: Run) -> Verdict:
    """Judge a run by its alerts."""
    roots = [course for course in courses(run) if not getattr(course.alert, "cause", "")]
    findings = sorted(
        [*_grouped(course for course in roots if course.lasts), *_grouped(course for course in roots if not course.lasts)],
        key=_order,
    )
    present = [finding for finding in findings if finding.lasts and finding.severity != "info"]
    past = [finding for finding in findings if not finding.lasts and finding.severity != "info"]
    details = [*_ending(run), *_extent(run)]
    if not run.epochs:
        return Verdict("unknown", "Nothing was reported: no epoch was completed.", tuple(details), ())
    if not any(_heard(recorded) for recorded in run.monitors):
        return Verdict("unknown", "Nothing was heard: no module, no parameter, no optimizer.", tuple(details), tuple(findings))
    if present:
        first = present[0]
        more = f"; {len(present) - 1} more finding{'s' * (len(present) > 2)} below" if len(present) > 1 else ""
        status: Status = "critical" if first.severity == "critical" else "warning"
        return Verdict(status, f"{_capital(first.what)} at {first.where}, {first.when}{more}.", tuple(details), tuple(findings))
    if past:
        what = f"{_capital(past[0].what)} at {past[0].where}, {past[0].when}, passed."
        return Verdict("healthy", f"Nothing is wrong at the end. {what}", tuple(details), tuple(findings))
    return Verdict("healthy", "Nothing was found wrong.", tuple(details), tuple(findings))


def _of_monitor(recorded: Recorded, last: int) -> list[Course]:
    epochs = recorded.epochs
    place = {epoch: number for number, epoch in enumerate(epochs)}
    seen: dict[tuple[str, str], list[tuple[int, Alert]]] = {}
    for epoch in epochs:
        for alert in recorded.alerts[epoch]:
            seen.setdefault((alert.kind, alert.site), []).append((epoch, alert))
    at_the_end = {(alert.kind, alert.site): number for number, alert in enumerate(recorded.alerts[epochs[-1]])} if epochs else {}
    found = []
    for key in sorted(seen, key=lambda key: at_the_end.get(key, len(at_the_end))):
        stretch = [seen[key][-1]]
        for earlier in reversed(seen[key][:-1]):
            if place[stretch[0][0]] - place[earlier[0]] > 1:
                break
            stretch.insert(0, earlier)
        severity = min((alert.severity for _, alert in stretch), key=lambda one: GRAVITY.get(one, 3))
        until = stretch[-1][0]
        lasts = until == epochs[-1] and until == last
        found.append(
            Course(stretch[-1][1], recorded.prefix, severity, stretch[0][0], until, lasts, tuple(epoch for epoch, _ in seen[key]))
        )
    return found


def _grouped(courses: Iterable[Course]) -> list[Finding]:
    groups: dict[tuple[str, bool], list[Course]] = {}
    for course in courses:
        groups.setdefault((course.alert.kind, course.severity == "info"), []).append(course)
    return [_finding(group) for group in groups.values()]


def _order(finding: Finding) -> tuple[bool, bool, int, int]:
    urgency = URGENT.index(finding.kind) if finding.kind in URGENT else len(URGENT)
    return finding.severity == "info", not finding.lasts, GRAVITY.get(finding.severity, 3), urgency


def _finding(group: Sequence[Course]) -> Finding:
    ordered = sorted(group, key=lambda course: (GRAVITY.get(course.severity, 3), course.since))
    first = ordered[0]
    follows = [name for course in ordered for name in getattr(course.alert, "consequences", ())]
    return Finding(
        first.alert.kind,
        first.alert.title,
        first.severity,
        tuple(dict.fromkeys(course.alert.site for course in ordered)),
        min(course.since for course in ordered),
        max(course.until for course in ordered),
        first.lasts,
        _capital(first.alert.diagnosis),
        first.alert.advice,
        tuple(dict.fromkeys(follows)),
    )


def _ending(run: Run) -> list[str]:
    if run.end is None:
        return ["Training had not ended when this was written, or was killed."]
    how, error = run.end.get("how"), str(run.end.get("error", ""))
    if how == "exception":
        return [f"Training was ended by {error}."]
    return [] if how != "interrupted" else ["Training was interrupted by its user."]


def _extent(run: Run) -> list[str]:
    epochs = run.epochs
    if not epochs:
        return []
    parts = []
    for recorded in run.monitors:
        last = recorded.last
        if last is not None and recorded.prefix == "features":
            parts.append(_count(len(last.sites), "module"))
        elif last is not None and recorded.prefix == "gradient_flow":
            parts.append(_count(len(last.parameters), "parameter"))
    heard = f"{' and '.join(parts)} heard over " if parts else "Heard over "
    return [f"{_capital(heard)}{_count(len(epochs), 'epoch')}."]


def _heard(recorded: Recorded) -> bool:
    """Whether the last report is of anything; one of a kind that is not known here is taken to be."""
    tables = [getattr(recorded.last, table) for table in TABLES if hasattr(recorded.last, table)]
    return any(tables) or not tables


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
