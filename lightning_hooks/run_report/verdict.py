"""What is wrong with a run, since when, and what to try: the first thing a reader needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lightning_hooks.alerts.windows import REARM
from lightning_hooks.plots.names import shortened
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.brief import TABLES
from lightning_hooks.reports.kinds import gravity, inside_a_sentence, page_of
from lightning_hooks.reports.site_names import readable
from lightning_hooks.run_report.run import MonitorRecord, Run

Status = Literal["failed", "critical", "warning", "healthy", "unknown"]

LONGEST_ERROR = 160
"""Characters of an error's text in the headline."""

URGENT = ("nonfinite", "exploding", "dead", "vanishing")
"""The order of kinds that are equally severe: what breaks the rest of training, then what stops a layer."""


@dataclass(frozen=True, slots=True)
class Course:
    """One alert over the epochs."""

    alert: Alert  # As it was at first in its last stretch, with what it followed from at the end
    prefix: str  # of the monitor that raised it
    severity: str  # the highest in its last stretch
    since: int  # the first epoch of the last stretch of epochs with it; an epoch without it does not end one
    until: int  # the last epoch with it
    lasts: bool  # whether that is the run's last
    epochs: tuple[int, ...]  # All epochs with it
    unit: str = "epoch"  # what these are: epochs, or steps where windows are shorter


@dataclass(frozen=True, slots=True)
class Problem:
    """Alerts of one kind, shown as one problem.

    Attributes:
        kind: Of the alerts.
        title: The kind in a few plain words.
        severity: The highest among them.
        sites: Where, the root causes first.
        since: The first epoch.
        until: The last.
        lasts: Whether the run ended with it.
        seen: What was seen at the first site, and its likely cause.
        advice: What to try, as short imperatives; may be empty.
        consequences: Its consequences, as ``kind at site``.
        first: The alert as it was passed on first: its batch, step and value are those of the problem.
        again: The first and the last epoch of each earlier stretch.
        unit: What ``since`` and ``until`` are: ``epoch``, or ``step`` where windows are shorter than epochs.
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
    first: Alert | None = None
    again: tuple[tuple[int, int], ...] = ()
    unit: str = "epoch"

    @property
    def page(self) -> str:
        """The page of the documentation on the kind; empty for a kind of the user's own."""
        return page_of(self.kind)

    @property
    def what(self) -> str:
        """The kind in plain words, as in the middle of a sentence."""
        return inside_a_sentence(self.title)

    @property
    def where(self) -> str:
        """The first site, and how many more."""
        return shortened(readable(self.sites[0]), 60) + (f" and {len(self.sites) - 1} more" if len(self.sites) > 1 else "")

    @property
    def when(self) -> str:
        """Since when, or from when to when."""
        batch = "" if self.first is None or self.first.batch is None else f", batch {self.first.batch}"
        also = f" (also in {_spans(self.again, self.unit)})" if self.again else ""
        if self.lasts:
            return f"since {self.unit} {self.since}{batch}{also}"
        return f"in {_spans([(self.since, self.until)], self.unit)}{also}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a run.

    Attributes:
        status: ``failed`` if training ended with an error, else ``critical``, ``warning``, ``healthy``, or ``unknown`` if nothing
            was reported.
        headline: It in a sentence.
        details: More about the run, a sentence each.
        problems: Problems that last, the most severe and root causes first; then those that ended; then infos.
    """

    status: Status
    headline: str
    details: tuple[str, ...]
    problems: tuple[Problem, ...]


def courses(run: Run) -> list[Course]:
    """Follow every alert over the epochs, in the order of the monitors."""
    found: list[Course] = []
    last = max(run.epochs, default=-1)
    for record in run.monitors:
        found += _of_monitor(record, last)
    return found


def judge(run: Run) -> Verdict:
    """Judge a run by its alerts, and by how training ended."""
    found = [problem for record in run.monitors for problem in _problems(record, max(run.epochs, default=-1))]
    problems = tuple(sorted(found, key=_order))
    status, headline = _headline(run, problems)
    if run.error is not None and run.error[0] != "AlertError":  # of that one the alert says more
        before = "There was no alert before." if status == "healthy" and not problems else headline
        status, headline = "failed", f"Training ended with {_shortened(': '.join(run.error))}. {before}"
    return Verdict(status, headline, (*_ending(run), *_extent(run)), problems if run.epochs else ())


def _headline(run: Run, problems: Sequence[Problem]) -> tuple[Status, str]:
    present = [problem for problem in problems if problem.lasts and problem.severity != "info"]
    past = [problem for problem in problems if not problem.lasts and problem.severity != "info"]
    if not run.epochs:
        return "unknown", "No report: no window was completed."
    if not any(_observed(record) for record in run.monitors):
        return "unknown", "Nothing was observed: no module, no parameter and no optimizer."
    if present:
        first = present[0]
        more = f"; {len(present) - 1} more problem{'s' * (len(present) > 2)} below" if len(present) > 1 else ""
        status: Status = "critical" if first.severity == "critical" else "warning"
        return status, f"{_capital(first.what)} at {first.where}, {first.when}{more}."
    if past:
        return "healthy", f"No problem at the end. {_capital(past[0].what)} at {past[0].where}, {past[0].when}, ended."
    return "healthy", "Nothing was found wrong."


def _of_monitor(record: MonitorRecord, last: int) -> list[Course]:
    epochs = record.epochs
    place = {epoch: number for number, epoch in enumerate(epochs)}
    seen: dict[tuple[str, str], list[tuple[int, Alert]]] = {}
    for epoch in epochs:
        for alert in record.alerts[epoch]:
            seen.setdefault((alert.kind, alert.site), []).append((epoch, alert))
    at_the_end = {(alert.kind, alert.site): number for number, alert in enumerate(record.alerts[epochs[-1]])} if epochs else {}
    found = []
    for key in sorted(seen, key=lambda key: at_the_end.get(key, len(at_the_end))):
        stretch = [seen[key][-1]]
        for earlier in reversed(seen[key][:-1]):
            if place[stretch[-1][0]] - place[earlier[0]] > REARM:
                break
            stretch.append(earlier)
        stretch.reverse()
        severity = min((alert.severity for _, alert in stretch), key=gravity)
        until, latest = stretch[-1]
        first = dataclasses.replace(stretch[0][1], cause=latest.cause, consequences=latest.consequences)
        lasts = until == epochs[-1] and until == last
        found.append(
            Course(first, record.prefix, severity, stretch[0][0], until, lasts, tuple(at for at, _ in seen[key]), record.unit)
        )
    return found


@dataclass(slots=True)
class _Spell:
    """A stretch of epochs with one problem: root causes of one kind, at whatever sites."""

    first: Alert
    since: int
    number: int  # of the last report with it
    until: int = 0
    severity: str = "info"
    sites: dict[str, None] = field(default_factory=dict)
    consequences: dict[str, None] = field(default_factory=dict)

    def add(self, epoch: int, roots: Sequence[Alert]) -> None:
        self.until = epoch
        self.severity = min((self.severity, *(root.severity for root in roots)), key=gravity)
        self.sites.update(dict.fromkeys(site for root in roots for site in (root.site, *root.also)))
        self.consequences.update(dict.fromkeys(name for root in roots for name in root.consequences))


def _problems(record: MonitorRecord, last: int) -> list[Problem]:
    """The problems that one monitor found, each kind once, in the order in which they began."""
    spells: dict[tuple[str, bool], list[_Spell]] = {}
    for number, (epoch, alerts) in enumerate(record.alerts.items()):
        kinds = {alert.kind for alert in alerts}
        roots: dict[tuple[str, bool], list[Alert]] = {}
        for alert in alerts:
            if not alert.cause:
                roots.setdefault((alert.kind, alert.severity == "info"), []).append(alert)
        for key, group in roots.items():
            known = spells.setdefault(key, [])
            if not known or number - known[-1].number > REARM:
                known.append(_Spell(min(group, key=lambda root: gravity(root.severity)), epoch, number))
            known[-1].add(epoch, group)
        for (kind, _), known in spells.items():
            if kind in kinds and number - known[-1].number <= REARM:
                known[-1].number = number
    end = max(record.alerts, default=-1)
    return [_problem(known, known[-1].until == end == last, record.unit) for known in spells.values()]


def _order(problem: Problem) -> tuple[bool, bool, int, int]:
    urgency = URGENT.index(problem.kind) if problem.kind in URGENT else len(URGENT)
    return problem.severity == "info", not problem.lasts, gravity(problem.severity), urgency


def _problem(spells: Sequence[_Spell], lasts: bool, unit: str) -> Problem:
    *earlier, spell = spells
    first = spell.first
    return Problem(
        first.kind,
        first.title,
        spell.severity,
        tuple(dict.fromkeys((first.site, *spell.sites))),
        spell.since,
        spell.until,
        lasts,
        _capital(first.seen),
        first.advice,
        tuple(spell.consequences),
        first,
        tuple((other.since, other.until) for other in earlier),
        unit,
    )


def _spans(stretches: Iterable[tuple[int, int]], unit: str) -> str:
    """``epoch 3``, ``epochs 3 to 5 and 9``."""
    parts = [f"{since}" if since == until else f"{since} to {until}" for since, until in stretches]
    several = len(parts) > 1 or "to" in parts[0]
    return f"{unit}{'s' * several} {', '.join(parts[:-1])}{' and ' * (len(parts) > 1)}{parts[-1]}"


def _shortened(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]} …"


def _ending(run: Run) -> list[str]:
    if run.end is None:
        return ["Training was still running when this was written, or was killed."]
    how, error = run.end.get("how"), str(run.end.get("error", ""))
    if how == "exception":
        return [f"Training ended with {error}."]
    return [] if how != "interrupted" else ["Training was interrupted by the user."]


def _extent(run: Run) -> list[str]:
    epochs = run.epochs
    if not epochs:
        return []
    parts = []
    for record in run.monitors:
        last = record.last
        if last is not None and record.prefix == "features":
            parts.append(_count(len(last.sites), "module"))
        elif last is not None and record.prefix == "gradient_flow":
            parts.append(_count(len(last.parameters), "parameter"))
    observed = f"{' and '.join(parts)} observed over " if parts else "Observed over "
    return [f"{_capital(observed)}{_count(len(epochs), run.window)}."]


def _observed(record: MonitorRecord) -> bool:
    """Whether the last report is of anything; one of a kind that is not known here is taken to be."""
    tables = [getattr(record.last, table) for table in TABLES if hasattr(record.last, table)]
    return any(tables) or not tables


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
