"""What one member does with what its rules find."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lightning_hooks.alerts import Alert, AlertBook, AlertObservers, Rule, RuleBook
from lightning_hooks.declare.plain import from_plain
from lightning_hooks.declare.rulebook import Candidate
from lightning_hooks.declare.warn import Once
from lightning_hooks.declare.window import LAST, Report
from lightning_hooks.hooks.selection import closest_names


class Alerting:
    """One member's rules, the book of what they find, and its observers."""

    def __init__(self, functions: Iterable[Callable[[Alert], None]], rules: RuleBook) -> None:
        self.rules = rules
        self.observers = AlertObservers()
        for function in functions:
            self.observers.subscribe(function)
        self.start(fresh=True)

    def start(self, fresh: bool) -> None:
        """A fit starts; ``fresh`` if it goes on from no checkpoint."""
        self._warn_once = Once()
        if fresh:
            self.book = AlertBook()
            self.history: list[Any] = []  # earlier windows
            self.long_history: list[Any] = []  # earlier reports that rules which judge epochs were given
            self.set_by_user: set[str] = set()  # the names of alerts whose severity the user has set
            self._lasting: tuple[Alert, ...] = ()  # what rules that judge epochs found last
        self.book.of_epoch.clear()

    def judge(self, report: Any, whole: Any, early: Iterable[Alert] = ()) -> tuple[Alert, ...]:
        """Apply the rules to a window and remember it: what counts, causes first.

        Args:
            report: The window's.
            whole: What rules that judge epochs are given: ``report`` itself, or that of more windows; None if they wait for more.
                What they found last goes on then.
            early: What checks within the window found; it counts, whether or not the whole window shows it.
        """
        known = {(alert.kind, alert.site): alert for alert in early}
        candidates = []
        found = self.rules.judge(report.after(self.history), self._fault_of_rule, judges=None if whole is report else "window")
        if whole is not report and whole is not None:
            found += self.rules.judge(whole.after(self.long_history), self._fault_of_rule, judges="epoch")
        self.set_by_user -= {candidate.alert.name for candidate in found}
        self.set_by_user |= {candidate.alert.name for candidate in found if candidate.set_by_user}
        for candidate in found:
            checked = known.pop((candidate.alert.kind, candidate.alert.site), None)
            if checked is not None:  # the check knows when
                dated = dataclasses.replace(candidate.alert, since_step=checked.since_step, batch=checked.batch)
                candidate = candidate._replace(alert=dated)
            candidates.append(candidate)
        of_epochs = self.rules.kinds_of_epochs
        waiting = of_epochs if whole is None else frozenset[str]()
        alerts = tuple(self.book.confirmed([*candidates, *map(Candidate, known.values())], waiting))
        if whole is not None:
            self._lasting = tuple(alert for alert in alerts if alert.kind in of_epochs)
        if self.rules.rules:
            self.history = _with(self.history, report)
            self.long_history = self.long_history if whole is None else _with(self.long_history, whole)
        return alerts if whole is not None else (*alerts, *self._lasting)

    def urgent(self, report: Any) -> tuple[Alert, ...]:
        """Apply the urgent rules to what is known in the middle of a window; infos can wait."""
        found = self.rules.judge(report.after(self.history), self._fault_of_rule, urgent=True)
        alerts = (candidate.alert for candidate in found if candidate.alert.severity != "info")
        return tuple(a if a.since_step is not None else dataclasses.replace(a, since_step=a.step) for a in alerts)

    def _fault_of_rule(self, rule: Any, error: Exception) -> None:
        name = getattr(rule, "__name__", type(rule).__name__)
        what = f"The rule {name} raised {type(error).__name__}: {error}; its alerts are missing, and training goes on."
        self._warn_once(what, about=name)

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {
            **self.book.state_dict(),
            "history": [report.to_dict() for report in self.history],
            "long_history": [report.to_dict() for report in self.long_history],
            "set_by_user": sorted(self.set_by_user),
            "lasting": [alert.record() for alert in self._lasting],
        }

    def load_state_dict(self, state: dict[str, Any], report_type: type[Report]) -> None:
        """Restore the state of an earlier run."""
        self.book = AlertBook()
        self.book.load_state_dict(state)
        self.history = [report_type.from_dict(plain) for plain in state.get("history", [])]
        self.long_history = [report_type.from_dict(plain) for plain in state.get("long_history", [])]
        self.set_by_user = set(state.get("set_by_user", ()))
        self._lasting = tuple(from_plain(Alert, plain) for plain in state.get("lasting", []))


def _with(history: list[Any], report: Any) -> list[Any]:
    """The first report, and the last ones with a new one."""
    return [*history[:1], *[*history[1:], report][-LAST:]]


def check_sites(name: str, book: RuleBook, sites: Sequence[str]) -> None:
    """Check that each rule for sites of this model matches one.

    Args:
        name: The monitor's.
        book: The rules.
        sites: The sites of the model; none where they are only known once they are called.

    Raises:
        ValueError: If a rule matches none.
    """
    for rule in book.rules if sites else ():
        if isinstance(rule, Rule) and rule.sites != "*" and not any(map(rule.matches, sites)):
            near = closest_names(str(rule.sites), sites)
            raise ValueError(
                f"{name}: the rule {type(rule).__name__}(sites={rule.sites!r}) matches none of the places it is "
                f"to hold for. Closest names: {', '.join(map(repr, near))}."
            )
