"""What a user sees of a run: alerts as ``on_alert`` says, progress, the verdict, the closing lines, and the health report."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_hooks.alerts import Alert
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import REARM, gravity
from lightning_hooks.declare.plain import TABLES
from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.warn import Once, info, warn
from lightning_hooks.declare.window import Window
from lightning_hooks.run_report.lines import FOLDER, REPORTS
from lightning_hooks.run_report.page import PAGE, RunReport
from lightning_hooks.run_report.run import read_run, run_of_reports
from lightning_hooks.run_report.verdict import Verdict, conclude, is_observed
from lightning_hooks.session.member import Member
from lightning_hooks.sinks import Notice, Sink
from lightning_hooks.trackers import Table, coloured, show, some
from lightning_hooks.trackers.console import readable

LONGEST_ERROR = 500
MOST_ROWS = 6  # of a table in the full summary


def open_alerts(members: Sequence[Member]) -> list[Alert]:
    """The problems that last, one alert each, as first passed on, the most severe first."""
    lasting = [alert for member in members for alert in member.alerting.book.open if alert.severity != "info"]
    return sorted(lasting, key=lambda alert: gravity(alert.severity))


def end_event(host: Host, how: str, error: BaseException | None = None, stopped_by: Alert | None = None) -> dict[str, Any]:
    """The ``end`` event of a run's file: how it ended, by which error, and for which alert ``on_alert="stop"`` ended it."""
    at = host.position
    end: dict[str, Any] = {"how": how, "epoch": at.epoch, "step": at.global_step}
    if stopped_by is not None:
        end["stopped_by"] = stopped_by.name
    if error is not None:
        end["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
    if error is not None and how == "exception":
        end |= {"error_type": type(error).__name__, "error_text": str(error)[:LONGEST_ERROR]}
    return end


def verdict_of(members: Sequence[Member]) -> Verdict:
    """The verdict of the run so far on all windows of some members; the report has the same, from the run's file."""
    known = [member for member in members if member.has_reported]
    end = next((member.end for member in members if member.end is not None), None)
    return conclude([member.alerting.book for member in known], any(is_observed(member.report) for member in known), end)


def command_for(folder: Path) -> str:
    """The command that prints more on a run, by its log directory."""
    with suppress(OSError, ValueError):
        folder = folder.absolute().relative_to(Path.cwd())
    return f"lightning-hooks report {shlex.quote(str(folder))}"


def closing_lines(verdict: Verdict, alerts: Sequence[Alert], place: str = "", command: str = "") -> list[str]:
    """The verdict with the command that prints more, the first open alerts, and where the health report is.

    There may be no command and no report.
    """
    colour = "critical" if verdict.status == "failed" else verdict.status
    more = f" More: {command}" if command else ""
    found = [f"[{alert.severity}] {alert.kind} at {alert.where} (epoch {alert.epoch}, step {alert.step})" for alert in alerts]
    lines = [coloured(f"Monitors: {verdict.headline}", colour, sys.stdout) + more, f"Open alerts: {some(found, 2) or 'none'}"]
    return [*lines, f"Health report: {place}"] if place else lines


def print_closing(members: Sequence[Member], place: str = "", command: str = "") -> bool:
    """Print the closing lines of some members; return False where ``summary`` is off, or there is nothing to say."""
    verdict = verdict_of(members)
    known = place or verdict.status == "failed" or any(member.has_reported for member in members)
    if not known or not any(member.settings.summary for member in members):
        return False
    show(["", *closing_lines(verdict, open_alerts(members), place, command=command)])
    return True


def print_summaries(members: Sequence[Member]) -> None:
    """Print the last report of each member with ``summary="full"``, and some rows of its tables, those with an alert first."""
    for member in members:
        if member.settings.summary == "full" and member.report is not None and not member.live.unused:
            report = member.latest_report
            affected, lines = {alert.site for alert in report.alerts}, ["", repr(report)]
            for table, columns in member.kind.summary.items():
                rows = sorted(getattr(report, table).items(), key=lambda row: row[0] not in affected)[:MOST_ROWS]
                lines += [Table.of(TABLES[table], columns, rows)] * bool(rows)
            show(lines)


def run_report(members: Sequence[Member]) -> RunReport:
    """The health report of one monitor's run so far: from its files where they are written, else from the reports in memory."""
    used = [member for member in members if not getattr(member.collector, "unused", False)]  # a model without attention has none
    reports = {(member.kind.prefix, member.selection): member.history.reports for member in used}
    folder = next((member.folder / FOLDER for member in members if member.folder is not None), None)
    if folder is not None and any(reports.values()) and (folder / REPORTS).exists():
        page = folder / PAGE
        return RunReport(read_run(folder / REPORTS), page if members[0].end is not None and page.exists() else None)
    windows = grouped((report.at, report) for found in reports.values() for report in found)
    losses = {at: loss for at, found in sorted(windows.items()) if (loss := Window(found).loss) is not None}
    return RunReport(run_of_reports(reports, losses, members[0].end), None)


class Terminal(Sink):
    """Calls the observers of alerts, and shows text."""

    def __init__(self, host: Host, members: Callable[[], Sequence[Member]]) -> None:
        self._host, self._members = host, members
        self._warn_once = Once()  # of each observer that raised

    @override
    def alerts(self, notices: Sequence[Notice]) -> None:
        with self._host.console.printing():
            for notice in notices:
                if notice.over is None:
                    self._notify(notice)
                elif notice.alert.severity != "info":
                    alert, unit = notice.alert, notice.member.report.unit
                    where = f"{alert.kind} at {readable(alert.site)} (epoch {alert.epoch}, step {alert.step})"
                    info(f"[ended] {where}: not in the last {REARM} {'epochs' if unit == 'epoch' else 'windows'}.")

    def _notify(self, notice: Notice) -> None:
        """Call the observers, and show the text: as ``on_alert`` says, and where a function of it fails."""
        alert, member, actions, _ = notice
        failed: list[Any] = []

        def fault(observer: Any, error: Exception) -> None:
            failed.append(observer)
            self._warn_once(
                f"{observer!r}, which is called with alerts, raised {type(error).__name__}: {error}; training goes on, and "
                "this warning is shown once.",
                about=id(observer),
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

    @override
    def window_end(self, members: Sequence[Member]) -> None:
        everyone = self._members()
        if any(member.settings.progress_bar for member in everyone):
            reports = [member.report for member in everyone if member.report is not None]
            alerts = {(alert.kind, alert.site) for report in reports for alert in report.alerts if alert.severity != "info"}
            self._host.console.show_progress({"alerts": _Count(len(alerts))})

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """Print the closing lines of members without a record, which has its own."""
        if self._host.setup.is_global_zero:
            with self._host.console.printing():
                print_closing([member for member in self._members() if member.folder is None])


class _Count(int):
    """A whole number that stays one in a progress bar, whichever format the bar has for numbers."""

    def __format__(self, form: str) -> str:
        return str(int(self))
