"""What one member does with what its rules find."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from lightning_hooks.alerts import Alert, AlertObservers, AlertWindow, Rule, RuleBook
from lightning_hooks.alerts.rulebook import Candidate
from lightning_hooks.collectors.warn import warn
from lightning_hooks.reports.windows import Report
from lightning_hooks.session.settings import OnAlert
from lightning_hooks.trackers import some

HISTORY = 4
"""How many earlier reports a rule is given: the first of the training, and the last ones."""


class Alerting:
    """One member's rules, the windows over what they find, and its observers.

    Args:
        on_alert: As for :class:`~lightning_hooks.TrainingMonitor`.
        book: The rules.
    """

    def __init__(self, on_alert: OnAlert, book: RuleBook) -> None:
        self.on_alert = on_alert
        self.book = book
        self.observers = AlertObservers()
        if callable(on_alert):
            self.observers.subscribe(on_alert)
        self.window = AlertWindow()
        self.history: list[Any] = []
        self._faulty: set[str] = set()

    def start(self, fresh: bool) -> None:
        """A fit starts; ``fresh`` if it goes on from no checkpoint."""
        self._faulty.clear()
        if fresh:
            self.window = AlertWindow()
            self.history = []

    def judge(self, report: Any, early: Iterable[Alert] = ()) -> tuple[Alert, ...]:
        """Apply the rules to a report and remember it: what counts, causes first.

        Args:
            report: The window's.
            early: What checks within the window found; it counts, whether or not the whole window shows it.
        """
        known = {(alert.kind, alert.site): alert for alert in early}
        candidates = []
        for candidate in self.book.judge(report, tuple(self.history), self._fault_of_rule):
            checked = known.pop((candidate.alert.kind, candidate.alert.site), None)
            if checked is not None:  # the check knows when
                dated = dataclasses.replace(candidate.alert, since_step=checked.since_step, batch=checked.batch)
                candidate = candidate._replace(alert=dated)
            candidates.append(candidate)
        alerts = tuple(self.window.confirmed([*candidates, *map(Candidate, known.values())]))
        if self.book.wants_history:
            first, later = self.history[:1], [*self.history[1:], report]
            self.history = [*first, *later[1 - HISTORY :]] if first else [report]
        return alerts

    def urgent(self, report: Any) -> tuple[Alert, ...]:
        """Apply the urgent rules to what is known in the middle of a window; infos can wait."""
        found = self.book.judge(report, tuple(self.history), self._fault_of_rule, urgent=True)
        alerts = (candidate.alert for candidate in found if candidate.alert.severity != "info")
        return tuple(a if a.since_step is not None else dataclasses.replace(a, since_step=a.step) for a in alerts)

    def notify_observers(self, alert: Alert) -> None:
        """Call the observers."""
        self.observers.notify(alert, _fault_of_observer)

    def _fault_of_rule(self, rule: Any, error: Exception) -> None:
        name = getattr(rule, "__name__", type(rule).__name__)
        if name not in self._faulty:
            self._faulty.add(name)
            warn(f"The rule {name} raised {type(error).__name__}: {error}; its alerts are missing, and training goes on.")

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {**self.window.state_dict(), "history": [report.to_dict() for report in self.history]}

    def load_state_dict(self, state: dict[str, Any], report_type: type[Report] | None) -> None:
        """Take up the state of an earlier run."""
        self.window.load_state_dict(state)
        self.history = [] if report_type is None else [report_type.from_dict(plain) for plain in state.get("history", [])]

    def over_lines(self) -> list[str]:
        """What the full summary says of alerts that are over."""
        over = [
            f"{e.kind} at {e.site} (epoch {e.first_epoch}" + (f" to {e.last_epoch})" * (e.last_epoch > e.first_epoch) or ")")
            for e in self.window.ended
        ]
        return [f"  Over: {some(over)}"] if over else []


def check_sites(name: str, book: RuleBook, sites: Sequence[str]) -> None:
    """Check that each rule for sites of this model matches one.

    Args:
        name: The monitor's.
        book: The rules.
        sites: The sites of the model.

    Raises:
        ValueError: If a rule matches none.
    """
    for rule in book.rules:
        if isinstance(rule, Rule) and rule.sites != "*" and not any(map(rule.matches, sites)):
            plain = str(rule.sites).replace("*", "").strip(".")
            near = difflib.get_close_matches(plain, sites, n=3, cutoff=0.3) or sites[:3]
            raise ValueError(
                f"{name}: the rule {type(rule).__name__}(sites={rule.sites!r}) matches none of the places it is "
                f"to hold for. Closest names: {', '.join(map(repr, near))}."
            )


def _fault_of_observer(observer: Any, error: Exception) -> None:
    warn(f"on_alert={observer!r} raised {type(error).__name__}: {error}; training goes on.")
