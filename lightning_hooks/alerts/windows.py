"""When a finding counts, when an alert is news, and when it is over."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lightning_hooks.alerts.alert import Alert
from lightning_hooks.alerts.rulebook import Finding

ENDED = 50
"""How many alerts that are over are remembered for the summary."""

Key = tuple[str, str]


@dataclass(slots=True)
class _Seen:
    """What a rule found of a kind at a site: 1 or 0 for each of the last reports, and the step since which."""

    recent: list[int]
    since_step: int
    span: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An alert that was told and is over."""

    kind: str
    site: str
    first_epoch: int
    last_epoch: int


class AlertWindow:
    """Tells new alerts from those that were already told, and chance findings from those that count.

    A finding counts if its rule found it in ``times`` of the last ``of`` reports. An alert is told when it appears, holds
    silently while it lasts, is over after ``rearm`` reports without it, and only then can be told again: a value that
    wavers around its threshold is told once.

    Args:
        rearm: Reports without an alert after which it would be news again; at least 1.

    Attributes:
        cleared: What was over at the last :meth:`news`.
        ended: What is over since the start, the last ``ENDED`` of it.
    """

    def __init__(self, rearm: int = 2) -> None:
        if rearm < 1:
            raise ValueError(f"rearm must be at least 1; got {rearm!r}.")
        self.rearm = rearm
        self.cleared: list[Ended] = []
        self.ended: list[Ended] = []
        self._seen: dict[Key, _Seen] = {}
        self._absent: dict[Key, int] = {}  # told -> reports since it was last there
        self._epochs: dict[Key, tuple[int, int]] = {}  # told -> its first and last epoch

    def confirmed(self, findings: Iterable[Finding]) -> list[Alert]:
        """Enter what was found in one report; return what counts, each with the step since which it is there."""
        current = {(finding.alert.kind, finding.alert.site): finding for finding in findings}
        for key, seen in list(self._seen.items()):
            seen.recent = [*seen.recent, int(key in current)][-seen.span :]
            if not any(seen.recent):
                del self._seen[key]
        counted = []
        for key, (alert, times, of) in current.items():
            since = alert.step if alert.since_step is None else alert.since_step
            seen = self._seen.setdefault(key, _Seen([1], since, max(of, self.rearm)))
            if sum(seen.recent[-of:]) >= times:
                counted.append(dataclasses.replace(alert, since_step=seen.since_step))
        return counted

    def news(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Take the alerts of one report and return those to tell.

        What follows from another alert is no news; but if it was told before, when it was a root, it is not over.
        """
        current = {(alert.kind, alert.site): alert for alert in alerts}
        current = {key: alert for key, alert in current.items() if key in self._absent or not alert.cause}
        new = [alert for key, alert in current.items() if key not in self._absent]
        self.cleared = []
        for key in [key for key in self._absent if key not in current]:
            self._absent[key] += 1
            if self._absent[key] >= self.rearm:
                del self._absent[key]
                self.cleared.append(Ended(*key, *self._epochs.pop(key)))
        self.ended = [*self.ended, *self.cleared][-ENDED:]
        for key, alert in current.items():
            self._hold(key, alert)
        return new

    def at_once(self, alerts: Iterable[Alert]) -> list[Alert]:
        """Take alerts found in the middle of an epoch and return those to tell; nothing ends before the epoch does."""
        new = [alert for alert in alerts if not self.holds(alert)]
        for alert in new:
            self._hold((alert.kind, alert.site), alert)
        return new

    def holds(self, alert: Alert) -> bool:
        """Whether an alert was told and is not over."""
        return (alert.kind, alert.site) in self._absent

    def _hold(self, key: Key, alert: Alert) -> None:
        self._absent[key] = 0
        first, _ = self._epochs.get(key, (alert.epoch, alert.epoch))
        self._epochs[key] = (first, alert.epoch)

    def state_dict(self) -> dict[str, list[list[Any]]]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {
            "absent": [[*key, age, *self._epochs[key]] for key, age in self._absent.items()],
            "seen": [[*key, seen.recent, seen.since_step, seen.span] for key, seen in self._seen.items()],
            "ended": [[over.kind, over.site, over.first_epoch, over.last_epoch] for over in self.ended],
        }

    def load_state_dict(self, state: dict[str, list[list[Any]]]) -> None:
        """Take up the state of an earlier run."""
        self._absent, self._epochs = {}, {}
        for kind, site, age, *epochs in state["absent"]:  # without epochs up to version 0.1
            self._absent[kind, site] = int(age)
            self._epochs[kind, site] = (int(epochs[0]), int(epochs[1])) if epochs else (0, 0)
        self._seen = {
            (kind, site): _Seen([int(hit) for hit in recent], int(since), int(span))
            for kind, site, recent, since, span in state.get("seen", [])
        }
        self.ended = [Ended(str(kind), str(site), int(first), int(last)) for kind, site, first, last in state.get("ended", [])]
