"""What a monitor does with what its rules find, and what all monitors of a trainer tell together at an epoch's end."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from lightning_hooks.alerts import Alert, AlertError, AlertObservers, AlertWindow, RuleBook
from lightning_hooks.alerts.causes import in_order_of_cause
from lightning_hooks.alerts.rulebook import Finding
from lightning_hooks.callbacks.beside_bar import beside_bar
from lightning_hooks.callbacks.run_folder import run_folder
from lightning_hooks.reports.windows import Report
from lightning_hooks.run_report.lines import ALERTS, FOLDER, append
from lightning_hooks.trackers import Trackers, coloured, some

if TYPE_CHECKING:
    from lightning_hooks.callbacks.monitor import Monitor

OnAlert = Literal["log", "warn", "stop", "raise"] | Callable[[Alert], None]
Rules = Sequence[Any]
"""What ``rules=`` takes: :data:`lightning_hooks.alerts.rulebook.RuleSpec`, said loosely so that LightningCLI hands it on."""

ON_ALERT = ("log", "warn", "stop", "raise")
COLUMNS = (
    "severity",
    "kind",
    "site",
    "value",
    "threshold",
    "epoch",
    "step",
    "batch",
    "what was seen, the likely cause, what to try",
)
"""Of the table of alerts in the trackers."""
MOST_SHOWN = 200
"""Rows of that table at one step."""
_UNWRITABLE: set[Path] = set()
"""Files that a fit under way could not write, and that this was told of."""
HISTORY = 4
"""How many earlier reports a rule is given: the first of the training, and the last ones."""
FILE = Path(FOLDER, ALERTS)
"""Where in the log directory alerts are written, one JSON object a line."""


class Alerting:
    """One monitor's rules, the windows over what they find, and who is told.

    Args:
        on_alert: As for :class:`~lightning_hooks.callbacks.monitor.Monitor`.
        book: The rules.
    """

    def __init__(self, on_alert: OnAlert, book: RuleBook) -> None:
        if not callable(on_alert) and on_alert not in ON_ALERT:
            raise ValueError(f"on_alert must be one of {', '.join(ON_ALERT)}, or a function of an Alert; got {on_alert!r}.")
        self.on_alert = on_alert
        self.book = book
        self.observers = AlertObservers()
        if callable(on_alert):
            self.observers.subscribe(on_alert)
        self.window = AlertWindow()
        self.history: list[Any] = []
        self._told_faults: set[str] = set()

    def start(self, fresh: bool) -> None:
        """A fit starts; ``fresh`` if it goes on from no checkpoint."""
        self._told_faults.clear()
        if fresh:
            self.window = AlertWindow()
            self.history = []

    def judge(self, report: Any, early: Iterable[Alert] = ()) -> tuple[Alert, ...]:
        """Hold a report against the rules and remember it: what counts, causes first.

        Args:
            report: The epoch's.
            early: What checks within the epoch found; it counts, whether or not the whole epoch shows it.
        """
        known = {(alert.kind, alert.site): alert for alert in early}
        findings = []
        for finding in self.book.judge(report, tuple(self.history), self._fault_of_rule):
            checked = known.pop((finding.alert.kind, finding.alert.site), None)
            if checked is not None:  # the check knows when
                dated = dataclasses.replace(finding.alert, since_step=checked.since_step, batch=checked.batch)
                finding = finding._replace(alert=dated)
            findings.append(finding)
        alerts = tuple(self.window.confirmed([*findings, *map(Finding, known.values())]))
        if self.book.wants_history:
            first, later = self.history[:1], [*self.history[1:], report]
            self.history = [*first, *later[1 - HISTORY :]] if first else [report]
        return alerts

    def urgent(self, report: Any) -> tuple[Alert, ...]:
        """Hold what is known in the middle of an epoch against the urgent rules; infos can wait."""
        found = self.book.judge(report, tuple(self.history), self._fault_of_rule, urgent=True)
        alerts = (finding.alert for finding in found if finding.alert.severity != "info")
        return tuple(a if a.since_step is not None else dataclasses.replace(a, since_step=a.step) for a in alerts)

    def notify(self, alert: Alert) -> None:
        """Tell the observers."""
        self.observers.notify(alert, _fault_of_observer)

    def _fault_of_rule(self, rule: Any, error: Exception) -> None:
        name = getattr(rule, "__name__", type(rule).__name__)
        if name not in self._told_faults:
            self._told_faults.add(name)
            rank_zero_warn(f"The rule {name} raised {type(error).__name__}: {error}; it tells nothing, and training goes on.")

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {**self.window.state_dict(), "history": [report.to_dict() for report in self.history]}

    def load_state_dict(self, state: dict[str, Any], report_type: type[Report] | None) -> None:
        """Take up the state of an earlier run."""
        self.window.load_state_dict(state)
        self.history = [] if report_type is None else [report_type.from_dict(plain) for plain in state.get("history", [])]


def alert_file(trainer: Trainer, report_dir: str | os.PathLike[str] | None) -> Path | None:
    """Where the alerts of a fit are written; None if nowhere, as on ranks other than 0. Arguments as for ``run_folder``."""
    folder = run_folder(trainer, report_dir) if trainer.is_global_zero else None
    file = None if folder is None else folder / FILE
    if file is not None:
        _UNWRITABLE.discard(file)  # a new fit may try again
    return file


def conclude(trainer: Trainer, monitors: Sequence[Monitor[Any]], file: Path | None, step: int) -> None:
    """Put the alerts of all monitors in order of cause, and tell those that are new. Called once per epoch.

    Args:
        trainer: The trainer.
        monitors: Those that made a report this epoch.
        file: The JSON-lines file.
        step: Where the trackers put the epoch's end.

    Raises:
        AlertError: If a monitor with ``on_alert="raise"`` has news.
    """
    reports: list[Any] = [monitor.report for monitor in monitors]
    found = [report.alerts for report in reports]
    ordered = in_order_of_cause(reports, lambda place, alert: monitors[place].alerting.window.holds(alert))
    records: list[dict[str, Any]] = []
    fresh: dict[tuple[int, str], Alert] = {}
    for place, (monitor, alerts) in enumerate(zip(monitors, ordered.of_report, strict=True)):
        window = monitor.alerting.window
        reports[place] = report = monitor.report = dataclasses.replace(reports[place], alerts=window.grouped(alerts))
        fresh.update({(place, alert.name): alert for alert in window.news(report.alerts)})
        records += [
            {"event": "cleared", "monitor": monitor.prefix, **dataclasses.asdict(over), "epoch": report.epoch, "step": report.step}
            for over in window.cleared
        ]
    news = [
        News(monitors[place], fresh[place, alert.name], concerned(alert, monitors, found))
        for place, alert in ordered.roots
        if (place, alert.name) in fresh
    ]
    for monitor in monitors:
        if monitor.early is not None:
            monitor.early.epoch_ends()
    tell(trainer, news, step, file, records)


class News(NamedTuple):
    """An alert to tell.

    Attributes:
        monitor: The monitor it is of.
        alert: The alert.
        how: What ``on_alert`` says of it, of its own monitor and of those that found what follows from it.
    """

    monitor: Monitor[Any]
    alert: Alert
    how: frozenset[str]


def concerned(root: Alert, monitors: Sequence[Monitor[Any]], found: Sequence[Sequence[Alert]]) -> frozenset[str]:
    """What the monitors that found a cause, or something that follows from it, are to do.

    A monitor that is to stop the fit does so where what it found follows from what another found: had it been alone, it would have.

    Args:
        root: The cause.
        monitors: The monitors.
        found: What each of them found, with the severities of its rules.
    """
    if root.severity == "info":
        return frozenset()
    names = {root.name, *root.consequences}
    serious = (any(alert.name in names and alert.severity != "info" for alert in alerts) for alerts in found)
    return frozenset(
        monitor.on_alert for monitor, ill in zip(monitors, serious, strict=True) if ill and isinstance(monitor.on_alert, str)
    )


def tell(
    trainer: Trainer,
    news: Sequence[News],
    step: int,
    file: Path | None = None,
    records: Sequence[dict[str, Any]] = (),
) -> None:
    """Tell alerts, in order: to the file, the trackers, the observers, and as ``on_alert`` says.

    Args:
        trainer: The trainer.
        news: The alerts.
        step: Where the trackers put them.
        file: The JSON-lines file.
        records: What else goes there.

    Raises:
        AlertError: If a monitor with ``on_alert="raise"`` is concerned.
    """
    raised = [{"event": "raised", "monitor": monitor.prefix, **alert.record()} for monitor, alert, _ in news]
    if file is not None and trainer.is_global_zero:
        _append(file, [*raised, *records])
    serious = [alert for _, alert, _ in news if alert.severity != "info"]
    if serious:
        _show(news[0].monitor.trackers(trainer), serious, step)
    with beside_bar(trainer):
        for monitor, alert, how in news:
            monitor.alerting.notify(alert)
            if alert.severity != "info" and not callable(monitor.on_alert):
                if monitor.on_alert == "warn":
                    rank_zero_warn(str(alert))
                elif "raise" not in how:
                    rank_zero_info(coloured(str(alert), alert.severity))
    if any("stop" in entry.how for entry in news):
        trainer.should_stop = True
    fatal = [entry.alert for entry in news if "raise" in entry.how]
    if fatal:
        raise AlertError(fatal)


def over_lines(window: AlertWindow) -> list[str]:
    """What the full summary says of alerts that are over."""
    over = [
        f"{e.kind} at {e.site} (epoch {e.first_epoch}" + (f" to {e.last_epoch})" * (e.last_epoch > e.first_epoch) or ")")
        for e in window.ended
    ]
    return [f"  Over: {some(over)}"] if over else []


def began(alert: Alert) -> str:
    """Since when: the step, and the batch where that is known; empty where the end of its epoch is all that is known."""
    if alert.since_step in (None, alert.step) and alert.batch is None:
        return ""
    batch = "" if alert.batch is None else f", batch {alert.batch} of epoch {alert.epoch}"
    return f" (since step {alert.since_step}{batch})"


def _show(trackers: Trackers, alerts: Sequence[Alert], step: int) -> None:
    """Write new alerts to the trackers: a table of them, and a message for each kind where a tracker sends messages."""
    rows: list[tuple[object, ...]] = [
        (a.severity, a.kind, a.where, a.value, a.threshold, a.epoch, a.since_step, a.batch, str(a).partition(": ")[2])
        for a in alerts[:MOST_SHOWN]
    ]
    if len(alerts) > MOST_SHOWN:
        rows.append(("", "", f"… and {len(alerts) - MOST_SHOWN} more", None, None, alerts[0].epoch, None, None, ""))
    trackers.table("alerts", COLUMNS, rows, step)
    kinds: dict[str, list[Alert]] = {}
    for alert in alerts:
        kinds.setdefault(alert.kind, []).append(alert)
    for kind, group in kinds.items():
        trackers.alert(f"{kind} at {some([alert.site for alert in group], 1)}", group[0].message, group[0].severity)
    trackers.save()


def _append(file: Path, records: Sequence[dict[str, Any]]) -> None:
    if not records:
        return
    try:
        append(file, "".join(json.dumps(record) + "\n" for record in records))
    except (OSError, TypeError, ValueError) as error:  # of the disk; of what is no JSON
        if file not in _UNWRITABLE:
            _UNWRITABLE.add(file)
            rank_zero_warn(
                f"The alerts could not be written to {file}: {type(error).__name__}: {error}; training goes on, and this warning "
                "is shown once."
            )


def _fault_of_observer(observer: Any, error: Exception) -> None:
    rank_zero_warn(f"on_alert={observer!r} raised {type(error).__name__}: {error}; training goes on.")
