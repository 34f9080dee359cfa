"""How the alerts of all members reach the user: in order of cause, once."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from lightning_hooks.alerts import Alert, AlertError
from lightning_hooks.alerts.causes import in_order_of_cause
from lightning_hooks.alerts.windows import Ended
from lightning_hooks.declare.site_names import readable
from lightning_hooks.declare.warn import info, warn
from lightning_hooks.diagnostics.features.table_ids import MissedRow, id_out_of_range
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.hosts.host import Host
from lightning_hooks.replay.watch import StepWatch
from lightning_hooks.run_report.lines import ALERTS, ALERTS_VERSION, FOLDER, append
from lightning_hooks.session.diagnosis import Diagnosis
from lightning_hooks.session.listeners import Listeners
from lightning_hooks.session.member import Member
from lightning_hooks.session.rank_merge import merged
from lightning_hooks.trackers import Trackers, coloured, some

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


class Notice(NamedTuple):
    """An alert to pass on.

    Attributes:
        member: The member that found it.
        alert: The alert.
        actions: What ``on_alert`` says, of its own member and of those that found a consequence of it.
    """

    member: Member
    alert: Alert
    actions: frozenset[str]


class AlertDelivery:
    """Passes on the alerts of all members: to the file, the trackers, the observers, and as ``on_alert`` says.

    Args:
        host: The training loop.
        evidence: What is known of single steps.
        listeners: Those of the run.
    """

    def __init__(self, host: Host, evidence: StepWatch, listeners: Listeners) -> None:
        self._host, self._evidence, self._listeners = host, evidence, listeners
        self._diagnosis = Diagnosis(host)
        self.stopped_by: Alert | None = None  # the first alert with on_alert="stop"
        self._unwritable: set[Path] = set()  # files that could not be written, with a warning
        self._faulty: set[int] = set()  # ids of observers that raised, with a warning

    def window_end(self, members: Sequence[Member]) -> None:
        """Put the alerts of the window's reports in order of cause, and pass on those that are new.

        Args:
            members: Those that made a report of this window.

        Raises:
            AlertError: If a member with ``on_alert="raise"`` has a new alert.
        """
        reports: list[Any] = [self._dated(member.report) for member in members]
        found = [report.alerts for report in reports]
        ordered = in_order_of_cause(reports, lambda place, alert: members[place].alerting.window.holds(alert))
        records: list[dict[str, Any]] = []
        ended: list[str] = []
        fresh: dict[tuple[int, str], Alert] = {}
        for place, (member, alerts) in enumerate(zip(members, ordered.of_report, strict=True)):
            window = member.alerting.window
            known = self._roots_explained(alerts, member, reports)
            member.report = report = dataclasses.replace(reports[place], alerts=window.grouped(known))
            fresh.update({(place, alert.name): alert for alert in window.new_alerts(report.alerts)})
            records += [
                _record("cleared", member, dataclasses.replace(over.alert, epoch=report.epoch, step=report.step), over)
                for over in window.cleared
                if over.alert is not None
            ]
            if member.settings.actions:
                ended += [
                    f"[ended] {over.kind} at {readable(over.site)} (epoch {report.epoch}, step {report.step}): not in the last "
                    f"{window.rearm} {'epochs' if report.unit == 'epoch' else 'windows'}."
                    for over in window.cleared
                    if over.alert is not None and over.alert.severity != "info"
                ]
            if member.early is not None:
                member.early.reset()
        self._pass_on(_notices(members, ordered.roots, fresh, found), members[-1:], records, ended)

    def judge_urgent(self, members: Sequence[Member], last: bool = False, lookup: MissedRow | None = None) -> bool:
        """Apply the urgent rules to what members have so far, and pass on what is new, causes first.

        It waits for the device, and ranks exchange tables: call it only where something is wrong, on every rank alike.

        Args:
            members: Those that check within a window.
            last: Whether the run ends here, and the window under way with it.
            lookup: The lookup of an embedding that ended it.

        Returns:
            Whether the run is to stop.

        Raises:
            AlertError: If a member with ``on_alert="raise"`` has a new alert.
        """
        tables, (known,) = merged([member.live for member in members], [self._evidence.results.waiting])
        if known:
            self._evidence.results.agree()
        whole = [member.so_far(table) for member, table in zip(members, tables, strict=True)]
        if lookup is not None:
            whole = [dataclasses.replace(r, id_out_of_range=lookup) if isinstance(r, FeatureReport) else r for r in whole]
        reports: list[Any] = []
        for member, report in zip(members, whole, strict=True):
            alerts = member.urgent(report)
            if member.early is not None:
                member.early.found.update({(alert.kind, alert.site): alert for alert in alerts})
            reports.append(self._dated(dataclasses.replace(report, alerts=alerts)))
        ordered = in_order_of_cause(reports, lambda place, alert: members[place].alerting.window.holds(alert))
        of_report, fresh = [], {}
        for place, (member, found) in enumerate(zip(members, ordered.of_report, strict=True)):
            of_report.append(member.alerting.window.grouped(self._roots_explained(found, member, reports)))
            fresh.update({(place, alert.name): alert for alert in member.alerting.window.at_once(of_report[place])})
        notices = _notices(members, ordered.roots, fresh, [report.alerts for report in reports])
        for early in (member.early for member in members if member.early is not None):
            early.reported.update(notice.alert.kind for notice in notices)
        if not notices:
            return False
        if last or any("raise" in notice.actions for notice in notices):  # there will be no end of this window
            for member, report, alerts in zip(members, whole, of_report, strict=True):
                member.report = dataclasses.replace(report, alerts=alerts)
        self._pass_on(notices, [notices[0].member])
        return any("stop" in notice.actions for notice in notices)

    def last_look(self, members: Sequence[Member], error: BaseException, batch_idx: int | None, batch: Any) -> None:
        """Apply the urgent rules to the window that an exception ends: what raised may have been given NaN, or an id too large.

        Other ranks may not come here, so that one with others does not look.

        Args:
            members: All.
            error: The exception.
            batch_idx: The index of the training batch under way; None outside of one.
            batch: That batch.
        """
        if members and self._host.setup.world_size == 1:
            with suppress(Exception, KeyboardInterrupt):  # the run ends anyway, and its device may be what failed
                found = id_out_of_range(error, self._host.model, batch, batch_idx)
                observed = [member for member in members if member.sampled_batches or found is not None]
                self.judge_urgent(observed, last=True, lookup=found)

    def _roots_explained(self, alerts: Iterable[Alert], member: Member, reports: Sequence[Any]) -> list[Alert]:
        """Root causes with what is known of single steps, and those that are new with their causes."""
        known = [alert if alert.cause else self._evidence.results.explained(alert) for alert in alerts]
        new = member.alerting.unexplained(known)
        explained = dict(zip(map(id, new), self._diagnosis.explained(new, reports, self._evidence.results.bad_step), strict=True))
        return [explained.get(id(alert)) or member.alerting.as_explained(alert) for alert in known]

    def _dated(self, report: Any) -> Any:
        return dataclasses.replace(report, alerts=tuple(map(self._evidence.results.dated, report.alerts)))

    def _pass_on(
        self,
        notices: Sequence[Notice],
        writers: Sequence[Member],
        records: Sequence[dict[str, Any]] = (),
        ended: Sequence[str] = (),
    ) -> None:
        """Pass alerts on, in order; ``records`` is what else goes into the file of ``writers``, ``ended`` what else is logged."""
        raised = [_record("raised", member, alert) for member, alert, _ in notices]
        for writer in writers:
            self._append(writer.folder, [*raised, *records])
        self._listeners.alerts([alert for _, alert, _ in notices])
        serious = [alert for _, alert, _ in notices if alert.severity != "info"]
        if serious:
            _show(self._host.trackers, serious, self._host.metrics.step)
        stopping = next((notice.alert for notice in notices if "stop" in notice.actions), None)
        with self._host.console.printing():
            for notice in notices:
                self._notify(notice)
            for line in ended:
                info(line)
            if stopping is not None:
                info(f"Training stops because of {stopping.name} ({stopping.when}): on_alert='stop'.", logging.WARNING)
        if stopping is not None:
            self.stopped_by = self.stopped_by or stopping
            self._host.stop()
        fatal = [notice.alert for notice in notices if "raise" in notice.actions]
        if fatal:
            raise AlertError(fatal)

    def _notify(self, notice: Notice) -> None:
        """Call the observers, and show the text: as ``on_alert`` says, and where a function of it fails."""
        member, alert, actions = notice
        failed: list[Any] = []

        def fault(observer: Any, error: Exception) -> None:
            failed.append(observer)
            if id(observer) not in self._faulty:
                self._faulty.add(id(observer))
                warn(
                    f"{observer!r}, which is called with alerts, raised {type(error).__name__}: {error}; training goes on, and "
                    "this warning is shown once."
                )

        member.alerting.observers.notify(alert, fault)
        if alert.severity == "info":
            return
        own = member.settings.actions
        unseen = any(observer is function for observer in failed for function in member.settings.functions)
        if "warn" in own:
            warn(str(alert))
        if "raise" not in actions and ("log" in own or ("warn" not in own and ("stop" in own or unseen))):
            what, *rest = str(alert).splitlines()
            info("\n".join([coloured(what, alert.severity), *rest]), logging.WARNING)

    def _append(self, folder: Path | None, records: Sequence[dict[str, Any]]) -> None:
        if folder is None or not records:
            return
        file = folder / FOLDER / ALERTS
        try:
            append(file, "".join(json.dumps(record) + "\n" for record in records))
        except (OSError, TypeError, ValueError) as error:  # of the disk; of what is no JSON
            if file not in self._unwritable:
                self._unwritable.add(file)
                warn(
                    f"The alerts could not be written to {file}: {type(error).__name__}: {error}; training goes on, and "
                    "this warning is shown once."
                )


def _record(event: str, member: Member, alert: Alert, over: Ended | None = None) -> dict[str, Any]:
    """A line of the file of alerts: the same fields for every event."""
    first, last = (alert.epoch, alert.epoch) if over is None else (over.first_epoch, over.last_epoch)
    head = {"version": ALERTS_VERSION, "event": event, "monitor": member.kind.prefix}
    return {**head, **alert.record(), "first_epoch": first, "last_epoch": last}


def _notices(
    members: Sequence[Member],
    roots: Sequence[tuple[int, Alert]],
    fresh: dict[tuple[int, str], Alert],
    found: Sequence[Sequence[Alert]],
) -> list[Notice]:
    """The root causes that are new, with the actions of the members that are affected."""
    return [
        Notice(members[place], fresh[place, alert.name], actions_on(alert, members, found))
        for place, alert in roots
        if (place, alert.name) in fresh
    ]


def actions_on(root: Alert, members: Sequence[Member], found: Sequence[Sequence[Alert]]) -> frozenset[str]:
    """What the members that found a root cause, or a consequence of it, are to do.

    A member that is to stop the run does so where what it found is a consequence of what another found: alone it would have.

    Args:
        root: The root cause.
        members: The members.
        found: What each of them found, with the severities of its rules.
    """
    if root.severity == "info":
        return frozenset()
    names = {root.name, *root.consequences}
    serious = (any(alert.name in names and alert.severity != "info" for alert in alerts) for alerts in found)
    return frozenset[str]().union(*(member.settings.actions for member, affected in zip(members, serious, strict=True) if affected))


def _show(trackers: Trackers, alerts: Sequence[Alert], step: int) -> None:
    """Write new alerts to the trackers: a table of them, and a message for each kind where a tracker sends messages."""
    rows: list[tuple[object, ...]] = [
        (a.severity, a.kind, a.where, a.value, a.threshold, a.epoch, a.since_step, a.batch, f"{a.text} {a.follows}".strip())
        for a in alerts[:MOST_SHOWN]
    ]
    if len(alerts) > MOST_SHOWN:
        rows.append(("", "", f"… and {len(alerts) - MOST_SHOWN} more", None, None, alerts[0].epoch, None, None, ""))
    trackers.table("alerts", COLUMNS, rows, step)
    kinds: dict[str, list[Alert]] = {}
    for alert in alerts:
        kinds.setdefault(alert.kind, []).append(alert)
    for kind, group in kinds.items():
        trackers.alert(f"{kind} at {some([alert.site for alert in group], 1)}", group[0].text, group[0].severity)
    trackers.save()
