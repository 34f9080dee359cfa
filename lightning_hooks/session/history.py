"""The reports of a run, kept to draw from."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lightning_hooks.declare.brief import TABLES
from lightning_hooks.declare.collector import Collector
from lightning_hooks.plots.heat import heatmap
from lightning_hooks.plots.series import as_reports

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

MOST_EPOCHS = 1000
MOST_ROWS = 100_000
"""A row of a report takes about 400 bytes: so many are some 40 MB, which 60 layers with 120 parameters reach after 550 epochs."""


class History:
    """The last reports of one monitor, oldest first.

    Args:
        name: The monitor's, for messages.
        kind: What it measures.
    """

    def __init__(self, name: str, kind: type[Collector[Any]]) -> None:
        self._name, self._kind = name, kind
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
        reports = as_reports(self._known())
        draw = self._kind.picture(reports, stat)
        return heatmap(reports, stat or self._kind.drawn) if draw is None else draw()

    def to_frame(self, others: Iterable[Any] = ()) -> pandas.DataFrame:
        """Return the reports, and others of the same windows, as a pandas table.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet.
        """
        return frame([*self._known(), *others])

    def _known(self) -> list[Any]:
        if not self.reports:
            raise ValueError(
                f"{self._name} has no report yet: expected a window of trainer.fit() that has ended, got none. Call this after "
                "the first window: an epoch, or report_every_n_steps batches."
            )
        return list(self.reports)


def _window(report: Any) -> tuple[int, int | None]:
    return report.epoch, getattr(report, "window", None)


def frame(reports: Iterable[Any]) -> pandas.DataFrame:
    """Return reports as one long table: a row for each epoch and each module, parameter or optimizer.

    Args:
        reports: Of one kind.

    Returns:
        Columns ``epoch``, ``step``, ``of`` (``module``, ``parameter`` or ``optimizer``), ``name``, and one per statistic; NaN where
        one does not apply.

    Raises:
        ImportError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame() needs pandas: pip install pandas.") from error
    rows = []
    for report in reports:
        for table, noun in TABLES.items():
            for name, stats in getattr(report, table, {}).items():
                values = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
                rows.append({"epoch": report.epoch, "step": report.step, "of": noun, "name": name, **values})
    return pd.DataFrame(rows, columns=None if rows else ["epoch", "step", "of", "name"])
