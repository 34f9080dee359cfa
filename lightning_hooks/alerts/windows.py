"""When an alert counts, when it is new, and when it is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import REARM, SEVERITIES
from lightning_hooks.declare.plain import from_plain
from lightning_hooks.declare.rulebook import Candidate

ENDED = 50
"""How many alerts that are over are remembered for the summary."""

Key = tuple[str, bool]
"""Kind, and whether it is more than an info: the identity of a problem while it lasts."""


@dataclass(slots=True)
class _Seen:
    """What a rule found of a kind at a site: 1 or 0 for each of the last reports, and the step since which."""

    recent: list[int]
    since_step: int
    span: int


@dataclass(slots=True)
class Open:
    """A problem that was passed on and lasts."""

    # The alert as it was first passed on; its step, batch and value are those of the problem. Its severity is the highest that was
    # passed on.
    first: Alert
    level: int  # the place of that severity in SEVERITIES
    last_epoch: int  # the last epoch with it
    absent: int = 0  # reports since then
    sites: dict[str, None] = field(default_factory=dict)  # the sites that were its root cause so far
    root: bool = True  # whether it is a root cause in the last report, and not only a consequence of something else


@dataclass(frozen=True, slots=True)
class Ended:
    """An alert that was passed on and is over."""

    kind: str
    site: str
    first_epoch: int
    last_epoch: int
    alert: Alert | None = None  # as it was passed on; None of one that was over before training was resumed


class AlertWindow:
    """Separates new alerts from those that were passed on before, and chance ones from those that count.

    An alert counts if its rule found it in ``times`` of the last ``of`` reports. What counts is one problem per kind, whatever the
    site: the layer at which gradients pass a limit moves from epoch to epoch. The first alert of a kind is passed on when it
    appears, and again only if it becomes more severe; it lasts, and is over after ``rearm`` reports without the kind.

    Args:
        rearm: Reports without an alert after which it would be new again; at least 1.

    Attributes:
        cleared: What was over at the last :meth:`new_alerts`.
        ended: What is over since the start, the last ``ENDED`` of it.
    """

    def __init__(self, rearm: int = REARM) -> None:
        if rearm < 1:
            raise ValueError(f"rearm must be at least 1; got {rearm!r}.")
        self.rearm = rearm
        self.cleared: list[Ended] = []
        self.ended: list[Ended] = []
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._open: dict[Key, Open] = {}

    @property
    def open(self) -> list[Alert]:
        """The root causes that last, each as it was first passed on, with the highest severity since."""
        return [entry.first for entry in self._open.values() if entry.root and not entry.absent]

    def confirmed(self, candidates: Iterable[Candidate], waiting: Container[str] = ()) -> list[Alert]:
        """Enter what was found in one report; return what counts, each with the step since which it is there.

        Args:
            candidates: What the rules found.
            waiting: The kinds whose rules were not applied to this report.
        """
        current = {(candidate.alert.kind, candidate.alert.site): candidate for candidate in candidates}
        for key, seen in list(self._seen.items()):
            if key[0] in waiting:
                continue
            seen.recent = [*seen.recent, int(key in current)][-seen.span :]
            if not any(seen.recent):
                del self._seen[key]
        counted = []
        for key, (alert, times, of, _) in current.items():
            since = alert.step if alert.since_step is None else alert.since_step
            seen = self._seen.setdefault(key, _Seen([1], since, max(of, self.rearm)))
            if sum(seen.recent[-of:]) >= times:
                counted.append(dataclasses.replace(alert, since_step=seen.since_step))
        return counted

    def grouped(self, alerts: Iterable[Alert]) -> tuple[Alert, ...]:
        """Give the root causes of one kind one beginning, and the first of them the names of the others.

        Args:
            alerts: Of one report, root causes first, in order of cause.

        Returns:
            The alerts. Of a problem that was passed on before, root causes have the step since which it lasts; the alert that was
            passed on within the same epoch is as it was then, with the higher severity of the two.
        """
        alerts = list(alerts)
        groups = _roots(alerts)
        leaders = {id(_leader(group)): group for group in groups.values()}
        return tuple(self._dated(alert, leaders.get(id(alert), ())) for alert in alerts)

    def _dated(self, alert: Alert, group: Iterable[Alert]) -> Alert:
        also = tuple(other.site for other in group if other is not alert)
        entry = None if alert.cause else self._open.get(_key(alert))
        if entry is not None and (alert.site, alert.epoch) == (entry.first.site, entry.first.epoch):
            severity = max(entry.first.severity, alert.severity, key=SEVERITIES.index)
            return dataclasses.replace(entry.first, also=also, consequences=alert.consequences, step=alert.step, severity=severity)
        since = alert.since_step if entry is None else entry.first.since_step
        return dataclasses.replace(alert, also=also, since_step=since)

    def new_alerts(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Take the alerts of one report, as :meth:`grouped` gave them, and return those to pass on.

        A consequence of another alert is not passed on; but if its kind was before, as a root cause, that is not over.
        """
        alerts = list(alerts)
        groups, kinds = _roots(alerts), {alert.kind for alert in alerts}
        new = self._enter(groups)
        self.cleared = []
        for key, entry in list(self._open.items()):
            entry.root = key in groups
            if entry.root or key[0] in kinds:
                entry.absent = 0
                entry.last_epoch = max((alert.epoch for alert in alerts), default=entry.last_epoch)
                continue
            entry.absent += 1
            if entry.absent >= self.rearm:
                del self._open[key]
                self.cleared.append(Ended(key[0], entry.first.site, entry.first.epoch, entry.last_epoch, entry.first))
        self.ended = [*self.ended, *self.cleared][-ENDED:]
        return new

    def at_once(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Take alerts found in the middle of an epoch and return those to pass on; nothing ends before the epoch does."""
        return self._enter(_roots(list(alerts)))

    def _enter(self, groups: dict[Key, list[Alert]]) -> list[Alert]:
        new = []
        for key, group in groups.items():
            leader = _leader(group)
            entry = self._open.get(key)
            level = SEVERITIES.index(leader.severity)
            if entry is None:
                entry = self._open[key] = Open(leader, level, leader.epoch)
                new.append(leader)
            elif level > entry.level:
                entry.level = level
                entry.first = dataclasses.replace(entry.first, severity=leader.severity)
                new.append(leader)
            entry.sites.update(dict.fromkeys(alert.site for alert in group))
        return new

    def holds(self, alert: Alert) -> bool:
        """Whether an alert was the root cause of a problem that lasts."""
        return any(alert.site in entry.sites for key, entry in self._open.items() if key[0] == alert.kind)

    def state_dict(self) -> dict[str, list[list[Any]]]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {
            "open": [
                [serious, entry.first.record(), entry.level, entry.last_epoch, entry.absent, list(entry.sites), entry.root]
                for (_, serious), entry in self._open.items()
            ],
            "seen": [[*key, seen.recent, seen.since_step, seen.span] for key, seen in self._seen.items()],
            "ended": [[over.kind, over.site, over.first_epoch, over.last_epoch] for over in self.ended],
        }

    def load_state_dict(self, state: dict[str, list[list[Any]]]) -> None:
        """Restore the state of an earlier run."""
        self._open = {}
        for serious, plain, level, last, absent, sites, root in state.get("open", []):
            alert: Alert = from_plain(Alert, plain)
            self._open[alert.kind, bool(serious)] = Open(
                alert, int(level), int(last), int(absent), dict.fromkeys(map(str, sites)), bool(root)
            )
        self._seen = {
            (kind, site): _Seen([int(hit) for hit in recent], int(since), int(span))
            for kind, site, recent, since, span in state.get("seen", [])
        }
        self.ended = [Ended(str(kind), str(site), int(first), int(last)) for kind, site, first, last in state.get("ended", [])]


def _key(alert: Alert) -> Key:
    return alert.kind, alert.severity != "info"


def _roots(alerts: Iterable[Alert]) -> dict[Key, list[Alert]]:
    groups: dict[Key, list[Alert]] = {}
    for alert in alerts:
        if not alert.cause:
            groups.setdefault(_key(alert), []).append(alert)
    return groups


def _leader(group: list[Alert]) -> Alert:
    """The most severe of the root causes of one kind, of several the first."""
    return max(group, key=lambda alert: SEVERITIES.index(alert.severity))
