"""Problems: the findings of a window, put together where one cause explains them.

One fault makes many symptoms. A rectifier that died passes no gradient, so every parameter before it is ``zero``; a NaN in one
layer is a NaN in all that come after. What one decisive cause explains is one problem, wherever it is seen; other symptoms belong
to the one that came first. What a problem has damaged may last longer than the problem: it may have begun in an earlier window.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.book import AlertBook
from lightning_hooks.declare.kinds import STATES, STEP, Kind, gravity, kind_of
from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.window import Began, Report, Window, batch_of

Found = tuple[int, Alert]  # the place of its report, and the alert
Explain = Callable[[Sequence[Alert]], Sequence[Alert]]  # alerts with their causes, given those that stand for their kind
MOST_CONSEQUENCES = 200  # what an earlier problem explained, of which the kinds are known again


@dataclass(slots=True, eq=False)
class FoundKind:
    """The alerts of one kind, and what they explain.

    Attributes:
        report: The place of the report with the alert that stands for them.
        alert: That alert, with its causes.
        others: The same kind elsewhere.
        moment: When the alert happened.
        lasts: Whether it was passed on in an earlier window and is open.
        passed_on: The alert by which it was.
        leads: Whether it is about the first bad step.
        effects: What it explains.
    """

    report: int
    alert: Alert
    others: list[Found] = field(default_factory=list)
    moment: Began = (-1.0, STEP, 0.0)
    lasts: bool = False
    passed_on: Alert | None = None
    leads: bool = False
    effects: list[FoundKind] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        """Its declaration."""
        return kind_of(self.alert.kind)

    @property
    def serious(self) -> bool:
        """Whether it is more than an info, which explains infos only."""
        return self.alert.severity != "info"

    @property
    def first(self) -> Alert:
        """The alert by which it was passed on, which may be about another site; if it was not, the one of this window."""
        return self.passed_on or self.alert

    @property
    def spreads(self) -> bool:
        """Whether it moves on through the model, so that it is one wherever it is seen."""
        return self.kind.states == "symptom" or self.kind.about == "nonfinite"

    @property
    def decisive(self) -> dict[str, float]:
        """The causes that much speaks for, by name, with their probabilities; none for an info."""
        causes = self.alert.causes or self.first.causes if self.serious else ()
        return {cause.name: cause.probability for cause in causes if cause.decisive}

    @property
    def surety(self) -> float:
        """The probability of its most likely cause; 0 where none is decisive."""
        return max(self.decisive.values(), default=0.0)

    @property
    def order(self) -> tuple[bool, bool, int, int, bool, Began]:
        """A sort key: what explains others comes first. Of what is not finite it is what was first."""
        unknown = not self.decisive and self.kind.about != "nonfinite"
        place = STATES.index(self.kind.states)
        return not self.leads, not self.serious, place, gravity(self.alert.severity), unknown, self.moment


class Judged(NamedTuple):
    """The alerts of a window in order."""

    of_report: list[tuple[Alert, ...]]  # for each report its alerts: problems first, then what these explain, as infos
    problems: list[FoundKind]  # those of all reports that nothing else explains


def in_problems(
    window: Window,
    books: Sequence[AlertBook] = (),
    lead: Alert | None = None,
    explain: Explain | None = None,
    judge: Callable[[FoundKind], Alert] = attrgetter("alert"),
) -> Judged:
    """Put the alerts of a window together.

    Args:
        window: The reports of all monitors.
        books: The alert book of each, without this window. A problem of an earlier window that no rule finds any more, but that
            explains something in this one, is among the alerts as it was passed on.
        lead: The alert of the window about the first bad step: what else is not finite came of it.
        explain: Names the causes of alerts that are new.
        judge: Says how probable a problem is, whose alert has its consequences; returns it so.
    """
    problems = _by_kind(window, books, lead)
    earlier = list(_earlier(problems, books))
    heads = sorted((problem for problem in [*problems, *earlier] if problem.lasts), key=lambda problem: problem.first.began)
    before = _explained_before(heads, books)
    new = [problem for problem in problems if not problem.lasts]
    unknown = [problem for problem in new if problem.alert.kind not in before and not problem.alert.causes]
    if explain is not None and unknown:
        found = explain([problem.alert for problem in unknown])
        for problem, alert in zip(unknown, found, strict=True):
            problem.alert = alert
    past = [FoundKind(place, one.passed_on, lasts=not one.over) for place, book in enumerate(books) for one in book.past]
    for problem in sorted(new, key=lambda problem: problem.order):
        head = before.get(problem.alert.kind) or next((head for head in heads if _explains(head, problem)), None)
        head = head or next((head for head in past if _comes_back(head, problem)), None)
        if head is None:
            heads.append(problem)
        else:
            head.effects.append(problem)
    left = [problem for problem in heads if problem in problems or problem.effects]
    for problem in left:
        _adopt(problem)
    ordered: list[list[Alert]] = [[] for _ in window.reports]
    for problem in sorted(left, key=lambda problem: (not problem.serious, STATES.index(problem.kind.states), problem.moment)):
        problem.alert = _with_effects(problem, window.reports)
        problem.alert = judge(problem)
        ordered[problem.report].append(problem.alert)
        if not problem.spreads:
            for report, alert in problem.others:
                ordered[report].append(dataclasses.replace(alert, cause="", consequences=()))
    for problem in [*left, *past]:
        for report, alert in _effects(problem):
            ordered[report].append(dataclasses.replace(alert, severity="info", cause=problem.alert.name, consequences=()))
    return Judged([tuple(alerts) for alerts in ordered], left)


def _by_kind(window: Window, books: Sequence[AlertBook], lead: Alert | None) -> list[FoundKind]:
    """One problem a kind: of its alerts the one that lasts from before stands for them, else the gravest, else the first."""
    groups = grouped(
        ((alert.kind, alert.severity != "info"), (place, alert, window.began(report, alert)))
        for place, report in enumerate(window.reports)
        for alert in report.alerts
    )
    problems = []
    for group in groups.values():

        def rank(one: tuple[int, Alert, Began]) -> tuple[bool, bool, int, Began]:
            place, alert, moment = one
            return alert is not lead, not (books and books[place].holds(alert)), gravity(alert.severity), moment

        (place, alert, moment), *others = sorted(group, key=rank)
        first = books[place].passed_on(alert) if books else None
        found = [(report, other) for report, other, _ in others]
        problems.append(FoundKind(place, alert, found, moment, first is not None, first, alert is lead))
    return problems


def _earlier(problems: Sequence[FoundKind], books: Sequence[AlertBook]) -> Iterator[FoundKind]:
    """What is open since earlier windows and not found in this one; and the causes that what is found again had."""
    found = {problem.alert.kind for problem in problems if problem.lasts and problem.serious}
    for place, book in enumerate(books):
        for alert in book.open:
            if alert.kind not in found and alert.severity != "info":
                yield FoundKind(place, alert, lasts=True)
            for problem in problems:  # what was passed on keeps its causes; those of an info may be others by now
                if (problem.alert.kind, problem.alert.site) == (alert.kind, alert.site) and alert.severity != "info":
                    problem.alert = dataclasses.replace(problem.alert, causes=alert.causes, remedies=alert.remedies)


def _explained_before(heads: Iterable[FoundKind], books: Sequence[AlertBook]) -> dict[str, FoundKind]:
    """The kinds that problems of earlier windows explained then."""
    found: dict[str, FoundKind] = {}
    by_name = {(head.report, head.alert.kind): head for head in heads if head.serious}
    for place, book in enumerate(books):
        for (kind, _), occurrence in book.lasting:
            if (place, kind) in by_name:
                effects = (name.partition(" at ")[0] for name in islice(occurrence.consequences, MOST_CONSEQUENCES))
                found |= dict.fromkeys((effect for effect in effects if effect != kind), by_name[place, kind])
    return found


def _explains(head: FoundKind, effect: FoundKind) -> bool:
    """Whether one problem explains another: they share a cause that much speaks for, or the second came of what spreads."""
    if head.serious < effect.serious or head.kind.name == effect.kind.name:
        return False
    later = head.lasts and head.first.began > effect.alert.began
    grew = head.lasts and bool(effect.decisive.keys() & {one.name for one in head.kind.causes})  # from step to step
    if effect.kind.about == "nonfinite" and not later and (head.kind.about == "nonfinite" or grew):
        return True
    if head.lasts and effect.kind.states == "fact" and head.kind.states != "fact":
        return False  # it says more than the symptom that was passed on
    if head.decisive.keys() & effect.decisive.keys():
        return True  # one cause, one problem
    if later:
        return False
    if _ends_in(head, effect):
        return True
    if head.lasts and gravity(effect.alert.severity) < gravity(head.alert.severity):
        return False  # what is graver than what was passed on is passed on itself
    if not effect.decisive and head.decisive.keys() & {one.name for one in effect.kind.causes}:
        return True
    event = effect.kind.about == "batch" and effect.kind.states == "symptom"
    if (head.lasts and effect.decisive) or (event and head.kind.about == "window"):
        return False
    if effect.kind.states == "outcome" and not effect.decisive:
        return head.kind.states != "own"
    return head.spreads and (effect.spreads or effect.kind.states == "outcome")


def _ends_in(head: FoundKind, effect: FoundKind) -> bool:
    """Whether the course of the loss is what a problem with a known cause does: a fact, or one surer than the loss's own cause."""
    return effect.kind.states == "outcome" and bool(head.decisive) and (head.kind.states == "fact" or head.surety >= effect.surety)


def _comes_back(head: FoundKind, effect: FoundKind) -> bool:
    """Whether a problem of earlier windows explains another kind, no graver: by its cause or, if it lasts, as its outcome."""
    again = head.kind.name == effect.kind.name or gravity(effect.alert.severity) < gravity(head.alert.severity)
    return not again and (bool(head.decisive.keys() & effect.decisive.keys()) or (head.lasts and _ends_in(head, effect)))


def _adopt(problem: FoundKind) -> None:
    """Give a problem whose cause is not known that of what it explains, if its kind may have it."""
    able = {one.name for one in problem.kind.causes}
    for effect in problem.effects if not problem.decisive and not problem.lasts else ():
        if effect.decisive.keys() & able:
            words = {name: getattr(effect.alert, name) for name in ("causes", "remedies", "diagnosis", "advice")}
            problem.alert = dataclasses.replace(problem.alert, **words)
            return


def _effects(problem: FoundKind) -> Iterator[Found]:
    if problem.spreads:
        yield from problem.others
    for effect in problem.effects:
        yield effect.report, effect.alert
        yield from effect.others


def _with_effects(problem: FoundKind, reports: Sequence[Report]) -> Alert:
    alert, effects = problem.alert, list(_effects(problem))
    names = dict.fromkeys(effect.name for _, effect in effects)  # a module's output and its gradient have one name
    new = () if problem.lasts and problem.decisive else problem.effects  # a known cause is shown once, whatever it does later
    grave = min([alert.severity, *(effect.alert.severity for effect in new)], key=gravity)
    message = f"{alert.message}{_earlier_step(problem, reports)}"
    consequences = tuple(name for name in names if name != alert.name)
    return dataclasses.replace(alert, cause="", consequences=consequences, severity=grave, message=message)


def _earlier_step(problem: FoundKind, reports: Sequence[Report]) -> str:
    """Of what is not finite, the step at which that began, if it is before the site was sampled."""
    steps = (events for report in reports for events in getattr(report, "events", {}).values())
    first = min(map(batch_of, steps), default=math.inf)
    passing, sampled, _ = reports[problem.report].moment_of(problem.alert)
    batch = min((float(batch) for batch in (sampled, problem.alert.batch) if batch is not None), default=math.inf)
    if problem.kind.about != "nonfinite" or passing == STEP or problem.lasts or not first < batch < math.inf:
        return ""
    return (
        f" A step with such a gradient was taken at training batch {first:.0f}, before this site was sampled: the fault may have "
        "begun elsewhere. Set every_n_steps=1 to find out."
    )
