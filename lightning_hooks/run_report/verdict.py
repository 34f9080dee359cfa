"""What is wrong with a run, since when, and what to try: the first thing a reader needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.book import AlertBook, Occurrence
from lightning_hooks.declare.kinds import REARM, capital, gravity, inside_a_sentence, known_kind
from lightning_hooks.declare.plain import TABLES
from lightning_hooks.judge.weights import record_of
from lightning_hooks.plots.series import window_of
from lightning_hooks.run_report.run import MonitorRecord, Run
from lightning_hooks.trackers.console import readable, shortened, some


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
        again: The first and the last epoch of each earlier occurrence.
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
    consequences: tuple[str, ...]
    first: Alert
    again: tuple[tuple[int, int], ...]
    unit: str

    @property
    def rules(self) -> str:
        """The command that explains this kind and its limits; empty for a kind of the user's own."""
        return f"lightning-hooks explain {self.kind}" if known_kind(self.kind) else ""

    @property
    def record(self) -> str:
        """How often alerts of this kind were right in the trainings of the evidence, in a sentence; empty for one of the user's."""
        record = record_of(self.kind)
        return f"Its record: {record}." if record else ""

    @property
    def headline(self) -> str:
        """Its cause in a sentence; what was measured where none is known."""
        return capital(self.first.headline)

    @property
    def seen_as(self) -> str:
        """What was measured, where the headline is the cause, and the samples."""
        return capital(f"{self.first.measured} {self.first.of_samples}".strip())

    @property
    def evidence(self) -> tuple[str, ...]:
        """What speaks for its most likely cause; empty without one."""
        return self.first.causes[0].evidence_for if self.first.causes else ()

    @property
    def against(self) -> tuple[str, ...]:
        """What speaks against that cause, and the other causes that it may have."""
        best, others = self.first.causes[:1], self.first.causes[1:]
        against = [text for cause in best for text in cause.evidence_against]
        return (*against, *(f"It may be another cause: {other.statement}" for other in others))

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
        batch = "" if self.first.batch is None else f", batch {self.first.batch}"
        also = f" (also in {_spans(self.again, self.unit)})" if self.again else ""
        if self.lasts:
            return f"since {self.unit} {self.since}{batch}{also}"
        return f"in {_spans([(self.since, self.until)], self.unit)}{also}"


def problems_of(book: AlertBook, last: int) -> list[Problem]:
    """The problems in a book, each kind once, in the order in which they began; ``last`` is the place of the run's last window."""
    found = ([occurrence for occurrence in known if occurrence.since >= 0] for known in book.problems.values())
    return [_problem(known, known[-1].until == book.last == last, book.unit) for known in found if known]


def _problem(occurrences: Sequence[Occurrence], lasts: bool, unit: str) -> Problem:
    *earlier, occurrence = occurrences
    first = occurrence.first
    return Problem(
        first.kind,
        first.title,
        occurrence.severity,
        tuple(dict.fromkeys((first.site, *occurrence.sites))),
        occurrence.since,
        occurrence.until,
        lasts,
        capital(first.seen),
        first.advice,
        tuple(occurrence.consequences),
        first,
        tuple((other.since, other.until) for other in earlier),
        unit,
    )


def _spans(stretches: Iterable[tuple[int, int]], unit: str) -> str:
    parts = [f"{since}" if since == until else f"{since} to {until}" for since, until in stretches]
    several = len(parts) > 1 or "to" in parts[0]
    return f"{unit}{'s' * several} {', '.join(parts[:-1])}{' and ' * (len(parts) > 1)}{parts[-1]}"


Status = Literal["failed", "critical", "warning", "healthy", "unknown"]

LONGEST_ERROR = 160  # characters of an error's text in the headline


@dataclass(frozen=True, slots=True)
class Course:
    """One alert over the epochs."""

    alert: Alert  # As it was at first in its last occurrence, with what it followed from at the end
    prefix: str  # of the monitor that raised it
    severity: str  # the highest in its last occurrence
    since: int  # the first epoch of the last stretch of epochs with it; an epoch without it does not end one
    until: int  # the last epoch with it
    lasts: bool  # whether that is the run's last
    epochs: tuple[int, ...]  # All epochs with it
    unit: str = "epoch"  # what these are: epochs, or steps where windows are shorter

    @property
    def key(self) -> tuple[str, str]:
        """Kind and site, which an alert is known by."""
        return self.alert.kind, self.alert.site

    @property
    def serious(self) -> bool:
        """Whether it was more than an info."""
        return self.severity != "info"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of a run.

    Attributes:
        status: ``failed`` if training ended with an error; ``critical`` or ``warning`` if it ended with such a problem; ``unknown``
            if nothing was reported, or the loss has not fallen; else ``healthy``.
        headline: It in a sentence.
        details: More about the run, a sentence each.
        problems: Problems that last, the most severe and root causes first; then those that ended; then infos.
        plain: The headline without what others named or wrote: no site, no text of an error.
        windows: How many windows there were.
        losses: The mean loss of the first window and of the last one that have a finite one; empty where none is known.
    """

    status: Status
    headline: str
    details: tuple[str, ...]
    problems: tuple[Problem, ...]
    plain: str = ""
    windows: int = 0
    losses: tuple[float, ...] = ()


def courses(run: Run) -> list[Course]:
    """Follow every alert over the epochs, in the order of the monitors."""
    last = max(run.epochs, default=-1)
    return [course for record in run.monitors for course in _of_monitor(record, last)]


def judge(run: Run) -> Verdict:
    """Judge a run that was read from its file."""
    books = []
    for record in run.monitors:
        books.append(AlertBook(unit=record.unit))
        for at, alerts in record.alerts.items():
            others = (alert for other in run.monitors if other is not record for alert in other.alerts.get(at, ()))
            books[-1].new_alerts(alerts, at, run.loss(at), others)
    verdict = conclude(books, any(record.observed for record in run.monitors), run.end)
    ending = "Training was still running when this was written, or was killed." if run.end is None else ""
    if run.end is not None and run.end.get("how") == "interrupted":
        ending = "Training was interrupted by the user."
    return dataclasses.replace(verdict, details=tuple(filter(None, (ending, _extent(run)))))


def conclude(books: Sequence[AlertBook], observed: bool, end: Mapping[str, Any] | None) -> Verdict:
    """Judge a run by the alerts and losses of all its windows, and by how training ended, if it has.

    ``observed`` says whether any monitor observed anything.
    """
    known = [book for book in books if book.windows]
    lasts = {book.unit: max(other.last for other in known if other.unit == book.unit) for book in known}
    problems = tuple(sorted((problem for book in known for problem in problems_of(book, lasts[book.unit])), key=_order))
    serious = [problem for problem in problems if problem.severity != "info"]
    end = end or {}
    status, headline, plain = _course(known, observed, problems)
    if end.get("how") == "exception" and end.get("error_type") != "AlertError":  # of that one the alert says more
        at = f" (epoch {end['epoch']}, step {end['step']})" if {"epoch", "step"} <= set(end) else ""
        alone = not serious and known
        before, plain = ("No alert was raised before it.",) * 2 if alone else (headline, plain)
        status, headline = "failed", f"Training ended with {_shortened(str(end.get('error', '')))}{at}. {before}"
        plain = f"Training ended with an exception{at}. {plain}"
    elif end.get("how") == "exception":
        headline, plain = (f"{text} on_alert='raise' ended training at step {end.get('step')}." for text in (headline, plain))
    if end.get("stopped_by"):
        headline += f" Stopped by {end['stopped_by']} at step {end.get('step')}."
        plain += f" Stopped by an alert at step {end.get('step')}."
    losses = max((book.losses for book in known), key=len, default=())
    return Verdict(status, headline, (), problems, plain, max((book.windows for book in known), default=0), losses)


def _course(books: Sequence[AlertBook], observed: bool, problems: Sequence[Problem]) -> tuple[Status, str, str]:
    """The status, the headline, and the headline without names of sites, of problems in order of importance."""
    if not books or not observed:
        text = "Nothing was observed: no module, no parameter and no optimizer." if books else "No report: no window was completed."
        return "unknown", text, text
    longest = max(books, key=lambda book: book.windows)
    fallen, loss = _loss(longest.unit, max((book.losses for book in books), key=len))
    status: Status = "healthy" if fallen else "unknown"
    serious = [problem for problem in problems if problem.severity != "info"]
    if not serious:
        infos = some(list(dict.fromkeys(problem.what for problem in problems)), 3)
        judged = f"no alert above info (infos: {infos})" if infos else "no rule broken"
        text = f"{_count(longest.windows, window_of(longest.unit))}, {judged}{loss}."
        return status, text, text
    first = serious[0]
    others = sum(problem.lasts == first.lasts for problem in serious) - 1
    more = f"; {others} more problem{'s' * (others > 1)}{' ended' * (not first.lasts)}" if others else ""
    rest = f", {first.when}{more}." if first.lasts else f", {first.when}, not seen since{more}{loss}."
    if first.lasts:
        status = "critical" if first.severity == "critical" else "warning"
    return status, f"{capital(first.what)} at {first.where}{rest}", f"{capital(first.what)}{rest}"


def _loss(unit: str, losses: Sequence[float]) -> tuple[bool, str]:
    """Whether the loss has fallen, or nothing is known of that; and a clause that says so."""
    if len(losses) < 2:
        return True, ""
    first, last = (f"{loss:#.3g}".rstrip(".") for loss in losses)
    if losses[1] < losses[0] and first != last:
        return True, f"; the loss fell from {first} to {last}"
    return False, f"; the loss has not fallen: {first} in the first {window_of(unit)}, {last} in the last"


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
        gaps = [place[at] - place[before] for (before, _), (at, _) in pairwise(seen[key])]
        begins = max((number for number, gap in enumerate(gaps, 1) if gap > REARM), default=0)
        stretch = seen[key][begins:]
        severity = min((alert.severity for _, alert in stretch), key=gravity)
        until, latest = stretch[-1]
        first = dataclasses.replace(stretch[0][1], cause=latest.cause, consequences=latest.consequences)
        lasts = until == epochs[-1] and until == last
        found.append(
            Course(first, record.prefix, severity, stretch[0][0], until, lasts, tuple(at for at, _ in seen[key]), record.unit)
        )
    return found


def _order(problem: Problem) -> tuple[bool, bool, int, float]:
    return problem.severity == "info", not problem.lasts, gravity(problem.severity), -(problem.first.probability or 0.0)


def _shortened(text: str) -> str:
    line = " ".join(text.split()).rstrip(".:")
    return line if len(line) <= LONGEST_ERROR else f"{line[:LONGEST_ERROR]} …"


def _extent(run: Run) -> str:
    epochs = run.epochs
    if not epochs:
        return ""
    parts = [
        _count(len(record.names[table]), noun)
        for record in run.monitors
        for prefix, table, noun in (("features", "sites", "module"), ("gradient_flow", "parameters", "parameter"))
        if record.prefix == prefix and table in record.names
    ]
    observed = f"{' and '.join(parts)} observed over " if parts else "Observed over "
    return f"{capital(observed)}{_count(len(epochs), run.window)}."


def is_observed(report: Any) -> bool:
    """Whether a report is of anything; one of a kind that is not known here is taken to be."""
    tables = [getattr(report, table) for table in TABLES if hasattr(report, table)]
    return any(tables) or not tables


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
