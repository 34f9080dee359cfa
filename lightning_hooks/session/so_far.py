"""The health report of a run that may still go on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_hooks.run_report.files import PAGE
from lightning_hooks.run_report.lines import FOLDER, REPORTS
from lightning_hooks.run_report.run import read_run, run_of_reports
from lightning_hooks.run_report.shown import RunReport
from lightning_hooks.session.described import mean_loss
from lightning_hooks.session.member import Member


def run_report(members: Sequence[Member]) -> RunReport:
    """The health report of a run so far: from its files where they are written, else from the reports in memory.

    Args:
        members: Of one monitor; of the files, all that was written there counts.
    """
    used = [member for member in members if not getattr(member.collector, "unused", False)]  # a model without attention has none
    reports = {(member.kind.prefix, member.selection): member.history.reports for member in used}
    folder = next((member.folder / FOLDER for member in members if member.folder is not None), None)
    if folder is not None and any(reports.values()) and (folder / REPORTS).exists():
        page = folder / PAGE
        return RunReport(read_run(folder / REPORTS), page if members[0].end is not None and page.exists() else None)
    windows: dict[int, list[Any]] = {}
    for report in (report for found in reports.values() for report in found):
        windows.setdefault(report.at, []).append(report)
    losses = {at: loss for at, found in sorted(windows.items()) if (loss := mean_loss(found)) is not None}
    return RunReport(run_of_reports(reports, losses, members[0].end), None)
