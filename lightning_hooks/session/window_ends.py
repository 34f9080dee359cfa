"""The end of windows: their reports are made, logged, judged, and passed on."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_hooks.declare.warn import Once, info, skipped_message
from lightning_hooks.session.evidence import SessionEvidence
from lightning_hooks.session.functional_calls import FunctionalCalls
from lightning_hooks.session.member import Member
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.run_alerts import RunAlerts
from lightning_hooks.session.sinks import Sinks
from lightning_hooks.session.windows import merged


class WindowEnds:
    """Ends windows: makes the reports, logs and judges them, and passes them on to the sinks.

    Args:
        calls: The calls of functions.
        hooks: The forward hooks.
        evidence: That of the last steps.
        sinks: What receives the windows.
        alerts: What judges them.
    """

    def __init__(
        self, calls: FunctionalCalls, hooks: ModuleHooks, evidence: SessionEvidence, sinks: Sinks, alerts: RunAlerts
    ) -> None:
        self._calls, self._hooks, self._evidence, self._sinks, self._alerts = calls, hooks, evidence, sinks, alerts
        self._info_once = Once(info)

    def end(self, members: Sequence[Member], everybody: Sequence[Member], epoch_ends: bool) -> None:
        """The windows of some members end.

        Args:
            members: Those whose window ends.
            everybody: All members of the session.
            epoch_ends: Whether the epoch ends with it.

        Raises:
            AlertError: If a member with ``on_alert="raise"`` has a new alert.
        """
        results = self._evidence.results
        for member in members:
            member.live.window_end()
        tables, (calls, bad) = merged([member.live for member in members], [self._calls.waiting, results.waiting])
        if calls:
            self._calls.agree()
        if bad:
            results.agree()
        for member, table in zip(members, tables, strict=True):
            member.finish_window(table, epoch_ends)
        self._calls.notify(member.live for member in everybody)
        skipped = self._hooks.faults.skipped + sum(member.faults.skipped for member in everybody)
        if skipped:
            self._info_once(skipped_message(skipped))
        self._sinks.reports(members)
        try:
            self._alerts.window_end(members)
        finally:  # also where on_alert="raise" ends the run here
            self._evidence.passed_on(alert for member in members for alert in member.report.alerts)
            for member in members:
                member.history.add(member.report)
            self._sinks.window_end(members)
