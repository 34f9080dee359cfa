"""What is wrong with a run, since when, and what to try: the first thing a reader needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.book import AlertBook
from lightning_hooks.declare.kinds import REARM, capital, gravity, inside_a_sentence
from lightning_hooks.declare.plain import TABLES
from lightning_hooks.declare.rule import grouped
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
        began = f"since {self.unit} {self.since}{batch}"
        return (began if self.lasts else f"in {_spans([(self.since, self.until)], self.unit)}") + also


def problems_of(book: AlertBook, last: int) -> list[Problem]:
    """The problems in a book, each kind once, in the order in which they began; ``last`` is the place of the run's last window."""
    found = ([occurrence for occurrence in known if occurrence.since >= 0] for known in book.problems.values())
    return [
        Problem(
            occurrence.first.kind,
            occurrence.first.title,
            occurrence.severity,
            tuple(dict.fromkeys((occurrence.first.site, *occurrence.sites))),
            occurrence.since,
            occurrence.until,
            occurrence.until == book.last == last,
            capital(occurrence.first.seen),
            occurrence.first.advice,
            tuple(occurrence.consequences),
            occurrence.first,
            tuple((other.since, other.until) for other in earlier),
            book.unit,
        )
        for *earlier, occurrence in filter(None, found)
    ]


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
        plain: The headline without the text of an error.
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
    observed = any(any(record.names.values()) or not record.names for record in run.monitors)
    verdict = conclude(books, observed, run.end)
    ending = "Training was still running when this was written, or was killed." if run.end is None else ""
    if run.end is not None and run.end.get("how") == "interrupted":
        ending = "Training was interrupted by the user."
    return replace(verdict, details=(ending,) if ending else ())


def conclude(books: Sequence[AlertBook], observed: bool, end: Mapping[str, Any] | None) -> Verdict:
    """Judge a run by the alerts and losses of all its windows, and by how training ended, if it has.

    ``observed`` says whether any monitor observed anything.
    """
    known = [book for book in books if book.windows]
    lasts = {book.unit: max(other.last for other in known if other.unit == book.unit) for book in known}
    problems = tuple(sorted((problem for book in known for problem in problems_of(book, lasts[book.unit])), key=_order))
    serious = [problem for problem in problems if problem.severity != "info"]
    end = end or {}
    status, before = _course(known, observed, problems)
    headline = plain = before
    if end.get("how") == "exception" and end.get("error_type") != "AlertError":  # of that one the alert says more
        at = f" (epoch {end['epoch']}, step {end['step']})" if {"epoch", "step"} <= set(end) else ""
        status, before = "failed", "No alert was raised before it." if known and not serious else before
        error = " ".join(str(end.get("error", "")).split()).rstrip(".:")
        error = error if len(error) <= LONGEST_ERROR else f"{error[:LONGEST_ERROR]} …"
        headline, plain = (f"Training ended with {what}{at}. {before}" for what in (error, "an exception"))
    elif end.get("how") == "exception":
        headline = plain = f"{headline} on_alert='raise' ended training at step {end.get('step')}."
    if end.get("stopped_by"):
        headline = plain = f"{headline} Stopped by {end['stopped_by']} at step {end.get('step')}."
    losses = max((book.losses for book in known), key=len, default=())
    return Verdict(status, headline, (), problems, plain, max((book.windows for book in known), default=0), losses)


def _course(books: Sequence[AlertBook], observed: bool, problems: Sequence[Problem]) -> tuple[Status, str]:
    """The status, and the headline, of problems in order of importance."""
    if not books or not observed:
        return (
            "unknown",
            "Nothing was observed: no module, no parameter and no optimizer." if books else "No report: no window was completed.",
        )
    longest = max(books, key=lambda book: book.windows)
    fallen, loss = _loss(longest.unit, max((book.losses for book in books), key=len))
    status: Status = "healthy" if fallen else "unknown"
    serious = [problem for problem in problems if problem.severity != "info"]
    if not serious:
        infos = some(list(dict.fromkeys(problem.what for problem in problems)), 3)
        judged = f"no alert above info (infos: {infos})" if infos else "no rule broken"
        return status, f"{_count(longest.windows, window_of(longest.unit))}, {judged}{loss}."
    first = serious[0]
    others = sum(problem.lasts == first.lasts for problem in serious) - 1
    more = f"; {others} more problem{'s' * (others > 1)}{' ended' * (not first.lasts)}" if others else ""
    rest = f", {first.when}{more}." if first.lasts else f", {first.when}, not seen since{more}{loss}."
    if first.lasts:
        status = "critical" if first.severity == "critical" else "warning"
    return status, f"{capital(first.what)} at {first.where}{rest}"


def _loss(unit: str, losses: Sequence[float]) -> tuple[bool, str]:
    """Whether the loss has fallen, or nothing is known of that; and a clause that says so."""
    if len(losses) < 2:
        return True, ""
    first, last = (f"{loss:#.3g}".rstrip(".") for loss in losses)
    fallen, window = losses[1] < losses[0] and first != last, window_of(unit)
    course = f"fell from {first} to {last}" if fallen else f"has not fallen: {first} in the first {window}, {last} in the last"
    return fallen, f"; the loss {course}"


def _of_monitor(record: MonitorRecord, last: int) -> Iterator[Course]:
    epochs = record.epochs
    place = {epoch: number for number, epoch in enumerate(epochs)}
    seen = grouped(((alert.kind, alert.site), (epoch, alert)) for epoch in epochs for alert in record.alerts[epoch])
    for dated in seen.values():
        gaps = [place[at] - place[before] for (before, _), (at, _) in pairwise(dated)]
        begins = max((number for number, gap in enumerate(gaps, 1) if gap > REARM), default=0)
        stretch = dated[begins:]
        (since, first), (until, latest) = stretch[0], stretch[-1]
        yield Course(
            replace(first, cause=latest.cause, consequences=latest.consequences),
            record.prefix,
            min((alert.severity for _, alert in stretch), key=gravity),
            since,
            until,
            until == epochs[-1] == last,
            tuple(at for at, _ in dated),
        )


def _order(problem: Problem) -> tuple[bool, bool, int, float]:
    return problem.severity == "info", not problem.lasts, gravity(problem.severity), -(problem.first.probability or 0.0)


def is_observed(report: Any) -> bool:
    """Whether a report is of anything; one of a kind that is not known here is taken to be."""
    tables = [getattr(report, table) for table in TABLES if hasattr(report, table)]
    return any(tables) or not tables


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
