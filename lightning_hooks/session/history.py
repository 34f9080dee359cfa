"""The reports of a run, kept to draw from, and its health report."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning_hooks.plots.picture import picture
from lightning_hooks.reports.brief import TABLES
from lightning_hooks.run_report.files import PAGE
from lightning_hooks.run_report.frame import frame
from lightning_hooks.run_report.lines import FOLDER, REPORTS
from lightning_hooks.run_report.run import read_run, run_of_reports
from lightning_hooks.run_report.shown import RunReport
from lightning_hooks.session.described import mean_loss

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from lightning_hooks.session.member import Member

MOST_EPOCHS = 1000
MOST_ROWS = 100_000
"""A row of a report takes about 400 bytes: so many are some 40 MB, which 60 layers with 120 parameters reach after 550 epochs."""


class History:
    """The last reports of one monitor, oldest first.

    Args:
        name: The monitor's, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.reports: deque[Any] = deque(maxlen=MOST_EPOCHS)

    def add(self, report: Any) -> None:
        """Keep a report; one of the same window as the last takes its place."""
        if report is None or (self.reports and self.reports[-1] is report):
            return
        if not self.reports:
            rows = sum(len(getattr(report, table, ())) for table in TABLES)
            self.reports = deque(maxlen=max(1, min(MOST_EPOCHS, MOST_ROWS // max(rows, 1))))
        elif _window(self.reports[-1]) == _window(report):
            self.reports.pop()
        self.reports.append(report)

    def plot(self, stat: str | None = None) -> Figure:
        """Draw the reports: a heat map of one statistic, or what suits them best; errors as for :meth:`to_frame`."""
        return picture(self._known(), stat)

    def to_frame(self) -> pandas.DataFrame:
        """Return the reports as a pandas table.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet.
        """
        return frame(self._known())

    def _known(self) -> list[Any]:
        if not self.reports:
            raise ValueError(
                f"{self._name} has no report yet: expected a window of trainer.fit() that has ended, got none. Call this after "
                "the first window: an epoch, or report_every_n_steps batches."
            )
        return list(self.reports)


def _window(report: Any) -> tuple[int, int | None]:
    return report.epoch, getattr(report, "window", None)


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
        return RunReport(read_run(folder / REPORTS), page if members[0].ended is not None and page.exists() else None)
    windows: dict[int, list[Any]] = {}
    for report in (report for found in reports.values() for report in found):
        windows.setdefault(report.at, []).append(report)
    losses = {at: loss for at, found in sorted(windows.items()) if (loss := mean_loss(found)) is not None}
    return RunReport(run_of_reports(reports, losses, members[0].ended), None)
