"""The alert book: when an alert counts, when it is new, how long it lasts, and when it is over.

A monitor keeps one while it trains, and one is made of its reports when a run's file is read: whatever shows alerts shows the same
state of them. An alert is *found* by a rule, *confirmed* once it was found often enough, then *open*; *found again* it stays one
problem, and it is *over* after some windows without it. Muted alerts never come.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import REARM, SEVERITIES, kind_of
from lightning_hooks.declare.plain import from_plain, to_plain
from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.rulebook import Candidate

MOST_OCCURRENCES = 50  # how many occurrences of one kind are kept

Key = tuple[str, bool]  # kind, and whether it is more than an info: the identity of a problem while it lasts


class EarlyChecks(NamedTuple):
    """One monitor's part in the checks within a window, which ``check_every_n_steps`` asks for.

    Attributes:
        every: After so many batches or steps a check is due.
        reported: The kinds that a check of this window passed on: further sites of the same kind can wait for the window's end.
    """

    every: int
    reported: set[str]


@dataclass(slots=True)
class _Hits:
    """What a rule found of a kind at a site: 1 or 0 for each of the last windows, and the step since which."""

    recent: list[int]
    since_step: int
    span: int


@dataclass(slots=True)
class Occurrence:
    """One occurrence of a problem, from its first window to its last: root causes of one kind, at whatever sites.

    Attributes:
        passed_on: The alert as it was passed on first, with the highest severity that was.
        first: The most severe root cause of the first window.
        number: The number of the last window with the kind, if only as a consequence of something else.
        last_epoch: The epoch of that window.
        root: Whether it is a root cause in the last window.
        over: Whether it has ended.
        back: Whether it was found again after that; then it lasts to the end.
        since: The first window, by its place; -1 where only a check within a window has found it.
        until: The last window with it as a root cause.
        severity: The highest in these windows.
        sites: Where it was the root cause.
        consequences: What was a consequence of it, as ``kind at site``.
    """

    passed_on: Alert
    first: Alert
    number: int
    last_epoch: int
    root: bool = True
    over: bool = False
    back: bool = False
    since: int = -1
    until: int = -1
    severity: str = "info"
    sites: dict[str, Any] = field(default_factory=dict)  # in order, without values
    consequences: dict[str, Any] = field(default_factory=dict)

    def add(self, at: int, roots: Sequence[Alert], alerts: Iterable[Alert]) -> None:
        """Enter a window by its place: the root causes of this kind in it, and the alerts of all monitors."""
        if self.since < 0:
            self.since, self.first = at, _leader(roots)
        self.until, self.over, self.back, names = at, False, self.back or self.over, {root.name for root in roots}
        self.severity = max(self.severity, *(root.severity for root in roots), key=SEVERITIES.index)
        self.sites.update(dict.fromkeys(site for root in roots for site in (root.site, *root.also)))
        self.consequences.update(dict.fromkeys(name for root in roots for name in root.consequences))
        # The run's file does not add those of later windows to the root.
        self.consequences.update(dict.fromkeys(alert.name for alert in alerts if alert.cause in names))


class AlertBook:
    """The alerts of one monitor from window to window, in as much memory as there are problems.

    An alert counts if its rule found it in ``times`` of the last ``of`` windows. What counts is one problem per kind, whatever the
    site: the layer at which gradients pass a limit moves from window to window. The first alert of a kind is passed on when it
    appears, and again only if it becomes more severe; it lasts, and is over after :data:`REARM` windows without the kind. A fact
    about a window that is found again at the same site goes on.

    Args:
        unit: What numbers the windows: ``epoch``, or ``step`` where they are shorter.

    Attributes:
        windows: How many there were.
        last: The place of the last one; -1 before the first.
        losses: The mean loss of the first window and of the last one that have a finite one; empty before.
        problems: Kind, and whether it is more than an info, to the occurrences, in the order in which problems began.
        cleared: What was over at the last :meth:`new_alerts`.
        early: What checks within the window under way have found, by kind and site.
        reported: The kinds that one of them passed on.
        of_epoch: The alerts of the epoch's windows by kind and site, each as it was last; whoever ends the epoch empties it.
    """

    def __init__(self, unit: str = "epoch") -> None:
        self.unit = unit
        self.windows, self.last = 0, -1
        self.losses: tuple[float, ...] = ()
        self.problems: dict[Key, list[Occurrence]] = {}
        self.cleared: list[Occurrence] = []
        self.early: dict[tuple[str, str], Alert] = {}
        self.reported: set[str] = set()
        self.of_epoch: dict[tuple[str, str], Alert] = {}
        self._hits: dict[tuple[str, str], _Hits] = {}

    @property
    def open(self) -> list[Alert]:
        """The root causes that last, each as it was passed on first, with the highest severity since."""
        return [occurrence.passed_on for _, occurrence in self.lasting if occurrence.root]

    def passed_on(self, alert: Alert) -> Alert | None:
        """The alert by which the problem of an alert was passed on; None where it was no root cause in the last window."""
        occurrence = self._open(alert)
        return occurrence.passed_on if occurrence is not None and occurrence.root else None

    @property
    def lasting(self) -> list[tuple[Key, Occurrence]]:
        """The problems that were passed on and last."""
        return [(key, known[-1]) for key, known in self.problems.items() if not known[-1].over]

    @property
    def past(self) -> list[Occurrence]:
        """What was passed on and is over, or was no root cause in the last window."""
        return [occurrence for known in self.problems.values() for occurrence in known if occurrence.over or not occurrence.root]

    def _open(self, alert: Alert) -> Occurrence | None:
        """The problem that lasts and that an alert belongs to; or that is over, if it is a fact at the same site."""
        known, kind = self.problems.get(_key(alert)), kind_of(alert.kind)
        returns = kind.states == "fact" and kind.about == "window"  # its number comes and goes around a limit
        return known[-1] if known and (not known[-1].over or (returns and known[-1].passed_on.site == alert.site)) else None

    # Found, and confirmed.

    def confirmed(self, candidates: Iterable[Candidate], waiting: Container[str] = ()) -> list[Alert]:
        """Enter what was found in one report; return what counts, each with the step since which it is there.

        Args:
            candidates: What the rules found.
            waiting: The kinds whose rules were not applied to this report.
        """
        current = {(candidate.alert.kind, candidate.alert.site): candidate for candidate in candidates}
        for key, hits in list(self._hits.items()):
            if key[0] in waiting:
                continue
            hits.recent = [*hits.recent, int(key in current)][-hits.span :]
            if not any(hits.recent):
                del self._hits[key]
        counted = []
        for key, candidate in current.items():
            alert, of = candidate.alert, candidate.of
            hits = self._hits.setdefault(key, _Hits([1], alert.began, max(of, REARM)))
            if sum(hits.recent[-of:]) >= candidate.times:
                counted.append(dataclasses.replace(alert, since_step=hits.since_step))
        return counted

    # Open, found again, and over.

    def grouped(self, alerts: Iterable[Alert]) -> tuple[Alert, ...]:
        """Give the root causes of one kind one beginning, and the first of them the names of the others.

        Args:
            alerts: Of one report, root causes first, in order of cause.

        Returns:
            The alerts. Of a problem that was passed on before, root causes have the step since which it lasts; the alert that was
            passed on within the same epoch is as it was then, with the higher severity of the two.
        """
        alerts = list(alerts)
        leaders = {id(_leader(group)): group for group in _roots(alerts).values()}
        return tuple(self._dated(alert, leaders.get(id(alert), ())) for alert in alerts)

    def _dated(self, alert: Alert, group: Iterable[Alert]) -> Alert:
        also = tuple(other.site for other in group if other is not alert)
        occurrence = None if alert.cause else self._open(alert)
        if occurrence is None:
            return dataclasses.replace(alert, also=also)
        known = occurrence.passed_on
        if (alert.site, alert.epoch) == (known.site, known.epoch):
            severity = max(known.severity, alert.severity, key=SEVERITIES.index)
            return dataclasses.replace(known, also=also, consequences=alert.consequences, step=alert.step, severity=severity)
        words = ["diagnosis", "advice", "causes", "remedies"] if known.causes and known.site == alert.site else []
        words += ["probability", "evidence"] if alert.probability is None else []
        return dataclasses.replace(alert, also=also, since_step=known.since_step, **{name: getattr(known, name) for name in words})

    def at_once(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Enter alerts found in the middle of a window; nothing ends before the window does.

        Returns:
            Of each problem that is to be passed on, because it is new or more severe than before, the alert that stands for it.
        """
        leaders = [(self._open(group[0]), _leader(group)) for group in _roots(alerts).values()]
        level = SEVERITIES.index
        new = [new for known, new in leaders if known is None or level(new.severity) > level(known.passed_on.severity)]
        for alert in new:
            occurrence = self._open(alert)
            if occurrence is None:
                known = self.problems.setdefault(_key(alert), [])
                known.append(Occurrence(alert, alert, self.windows, alert.epoch))
                del known[:-MOST_OCCURRENCES]
            else:
                occurrence.passed_on = dataclasses.replace(occurrence.passed_on, severity=alert.severity)
        return new

    def new_alerts(
        self, alerts: Iterable[Alert], at: int | None = None, loss: float = math.nan, others: Iterable[Alert] = ()
    ) -> list[Alert]:
        """Enter a window, as :meth:`grouped` gave its alerts, and return those to pass on.

        A consequence of another alert is not passed on; but if its kind was before, as a root cause, that is not over.

        Args:
            alerts: Its alerts, root causes first.
            at: Its place: the epoch or the step that it is numbered by; the last one again where it was not complete. None for the
                next.
            loss: The mean loss of its batches; NaN where that is not known.
            others: The alerts of other monitors in this window.
        """
        at = self.last + 1 if at is None else at
        self.windows += at != self.last
        self.last, alerts = at, list(alerts)
        if math.isfinite(loss):
            rounded = float(f"{loss:.5g}")  # as in the run's file, so that the report has the same verdict
            self.losses = (*self.losses[: self.windows > 1], rounded)
        groups, kinds = _roots(alerts), {alert.kind for alert in alerts}
        new, others = self.at_once(alerts), list(others)
        self.early.clear()
        self.reported.clear()
        for key, group in groups.items():
            known = self.problems[key]
            if len(known) == 1 and known[0].since < 0:  # a check within the window may have found it before others
                self.problems[key] = self.problems.pop(key)
            known[-1].add(at, group, [*alerts, *others])
        self.of_epoch.update({(alert.kind, alert.site): alert for alert in alerts})
        self.cleared, causes = [], {alert.cause for alert in (*alerts, *others)}
        for key, occurrence in self.lasting:
            occurrence.root = key in groups
            if key[0] in kinds or occurrence.passed_on.name in causes:
                occurrence.number, occurrence.last_epoch = self.windows, max(alert.epoch for alert in (*alerts, *others))
            elif self.windows - occurrence.number >= REARM and not occurrence.back:
                occurrence.over = True
                self.cleared.append(occurrence)
        return new

    def holds(self, alert: Alert) -> bool:
        """Whether an alert was the root cause of a problem that lasts."""
        occurrences = (occurrence for key, occurrence in self.lasting if key[0] == alert.kind)
        return any(alert.site in occurrence.sites or alert.site == occurrence.passed_on.site for occurrence in occurrences)

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {
            "windows": self.windows,
            "last": self.last,
            "losses": list(self.losses),
            "early": [alert.record() for alert in self.early.values()],
            "reported": sorted(self.reported),
            "of_epoch": [alert.record() for alert in self.of_epoch.values()],
            "hits": [[*key, hits.recent, hits.since_step, hits.span] for key, hits in self._hits.items()],
            "problems": [[*key, [to_plain(occurrence) for occurrence in known]] for key, known in self.problems.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""
        self.windows, self.last = int(state["windows"]), int(state["last"])
        self.losses = tuple(map(float, state["losses"]))
        for table, known in (("early", self.early), ("of_epoch", self.of_epoch)):
            alerts = (from_plain(Alert, plain) for plain in state[table])
            known.update({(alert.kind, alert.site): alert for alert in alerts})
        self.reported.update(state["reported"])
        self._hits = {
            (kind, site): _Hits([int(hit) for hit in recent], int(since), int(span))
            for kind, site, recent, since, span in state["hits"]
        }
        self.problems = {
            (kind, bool(serious)): [from_plain(Occurrence, plain) for plain in known] for kind, serious, known in state["problems"]
        }


def _key(alert: Alert) -> Key:
    return alert.kind, alert.severity != "info"


def _roots(alerts: Iterable[Alert]) -> dict[Key, list[Alert]]:
    return grouped((_key(alert), alert) for alert in alerts if not alert.cause)


def _leader(group: Sequence[Alert]) -> Alert:
    """The most severe of the root causes of one kind, of several the first."""
    return max(group, key=lambda alert: SEVERITIES.index(alert.severity))
