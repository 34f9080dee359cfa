"""The alerts of all members of a run: in order of cause, in their books, and passed on once."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from lightning_hooks.alerts import Alert, AlertError
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.warn import Once, info
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.batches.inputs import MissedRow, id_out_of_range
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.judge.diagnosis import Diagnosis
from lightning_hooks.judge.evidence import POSSIBLE, Judge
from lightning_hooks.judge.problems import FoundKind, in_problems
from lightning_hooks.replay.watch import StepWatch
from lightning_hooks.session.member import Member
from lightning_hooks.session.sinks import Sinks
from lightning_hooks.session.windows import merged
from lightning_hooks.sinks import Notice


class RunAlerts:
    """Puts the alerts of all members in order of cause and into their books, and passes new ones on to the sinks.

    Attributes:
        stopped_by: The first alert with ``on_alert="stop"``.
    """

    def __init__(self, host: Host, evidence: StepWatch, sinks: Sinks) -> None:
        self._host, self._evidence, self._sinks = host, evidence, sinks
        self._diagnosis = Diagnosis(host)
        self._warn_once = Once()
        self.stopped_by: Alert | None = None

    def window_end(self, members: Sequence[Member]) -> None:
        """Put the alerts of the window's reports in order of cause, and pass on those that are new.

        Raises:
            AlertError: If a member with ``on_alert="raise"`` has a new alert.
        """
        _, notices = self._enter(members, Window(self._dated(member.report) for member in members), Member.enter)
        ended = [
            Notice(dataclasses.replace(over.passed_on, epoch=member.report.epoch, step=member.report.step), member, over=over)
            for member in members
            for over in member.alerting.book.cleared
        ]
        self._pass_on(notices, ended)

    def judge_urgent(self, members: Sequence[Member], last: bool = False, lookup: MissedRow | None = None) -> None:
        """Apply the urgent rules to what members have so far, and pass on what is new, causes first.

        It waits for the device, and ranks exchange tables: call it only where something is wrong, on every rank alike.

        Args:
            members: Those that check within a window.
            last: Whether the run ends here, and the window under way with it.
            lookup: The lookup of an embedding that ended it.

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
            member.alerting.book.early.update({(alert.kind, alert.site): alert for alert in alerts})
            reports.append(self._dated(dataclasses.replace(report, alerts=alerts)))
        complete, notices = self._enter(
            members, Window(reports), lambda member, report, _: member.alerting.book.at_once(report.alerts)
        )
        for member in members:
            member.alerting.book.reported.update(kind_of(notice.alert.kind).about for notice in notices)
        if not notices:
            return
        if last or any("raise" in notice.actions for notice in notices):  # there will be no end of this window
            for member, report in zip(members, complete.reports, strict=True):
                member.enter(report)
        self._pass_on(notices)

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
                observed = [member for member in members if member.context.sampled_batches or found is not None]
                self.judge_urgent(observed, last=True, lookup=found)

    def _enter(
        self, members: Sequence[Member], window: Window, enter: Callable[[Member, Any, list[Alert]], list[Alert]]
    ) -> tuple[Window, list[Notice]]:
        """Put the alerts of a window in order of cause, each as it is passed on and shown, and enter them into the books.

        Args:
            members: Those that made its reports.
            window: The reports.
            enter: Enters a report into its member's book, given the alerts of the other reports; returns the alerts to pass on.

        Returns:
            The window with its alerts in order, and the root causes that are new, with the actions of the affected members.
        """
        books = [member.alerting.book for member in members]
        place, lead = self._lead(members, window) or (0, None)
        if lead is not None:
            window = window.led_by(lead, place)
        judge = Judge(window)

        def judged(problem: FoundKind) -> Alert:
            alert, member = problem.alert, members[problem.report]
            if problem.lasts or alert.name in member.alerting.set_by_user:
                return alert
            return judge.judged(alert, member.settings.min_probability, [effect.alert for effect in problem.effects])

        found = in_problems(window, books, lead, lambda alerts: self._explained(alerts, members, window, lead), judged)
        complete = window.with_alerts(book.grouped(alerts) for book, alerts in zip(books, found.of_report, strict=True))
        fresh = {
            (place, alert.name): alert
            for place, (member, report) in enumerate(zip(members, complete.reports, strict=True))
            for alert in enter(member, report, [one for other in complete.reports if other is not report for one in other.alerts])
        }
        notices = [
            Notice(fresh[place, root.name], members[place], actions_on(root, members, window))
            for place, root in ((problem.report, problem.alert) for problem in found.problems)
            if (place, root.name) in fresh and (root.severity != "info" or root.probability is None or root.probability >= POSSIBLE)
        ]
        return complete, notices

    def _lead(self, members: Sequence[Member], window: Window) -> tuple[int, Alert] | None:
        """The alert about the first bad step with its place, unless it is muted."""
        try:
            found = self._evidence.results.lead(window, [member.alerting.book.open for member in members])
        except Exception as error:  # noqa: BLE001  the alerts of the rules are passed on without it
            self._warn_once(f"What running the bad step again has shown is missing: {type(error).__name__}: {error}.", about="lead")
            return None
        muted = found is not None and any(mute.mutes(found[1]) for mute in members[found[0]].alerting.rules.mutes)
        return None if muted else found

    def _explained(self, alerts: Sequence[Alert], members: Sequence[Member], window: Window, lead: Alert | None) -> list[Alert]:
        """New alerts with what running their step again has shown, and with their causes."""
        results, leads = self._evidence.results, "" if lead is None else lead.name
        known = Window(
            report.after([one for one in member.alerting.history if one.step < report.step])
            for member, report in zip(members, window.reports, strict=True)
        )
        alerts = [alert if alert.name == leads else results.explained(alert) for alert in alerts]
        earlier = [alert for member in members for alert in member.alerting.book.open]
        return self._diagnosis.explained(alerts, known, results.bad_step, earlier)

    def _dated(self, report: Any) -> Any:
        return dataclasses.replace(report, alerts=tuple(map(self._evidence.results.dated, report.alerts)))

    def _pass_on(self, notices: Sequence[Notice], ended: Sequence[Notice] = ()) -> None:
        """Pass alerts on, in order, and stop or end the run as ``on_alert`` says."""
        if notices or ended:
            self._sinks.call("alerts", [*notices, *ended])
        stopping = next((notice.alert for notice in notices if "stop" in notice.actions), None)
        if stopping is not None:
            with self._host.console.printing():
                info(f"Training stops because of {stopping.name} ({stopping.when}): on_alert='stop'.", logging.WARNING)
            self.stopped_by = self.stopped_by or stopping
            self._host.stop()
        fatal = [notice.alert for notice in notices if "raise" in notice.actions]
        if fatal:
            raise AlertError(fatal)


def actions_on(root: Alert, members: Sequence[Member], window: Window) -> frozenset[str]:
    """What the members that found a root cause, or a consequence of it, are to do.

    A member that is to stop the run does so where what it found is a consequence of what another found: alone it would have.
    """
    if root.severity == "info":
        return frozenset()
    names = {root.name, *root.consequences}
    serious = (any(alert.name in names and alert.severity != "info" for alert in report.alerts) for report in window.reports)
    return frozenset[str]().union(*(member.settings.actions for member, affected in zip(members, serious, strict=True) if affected))
