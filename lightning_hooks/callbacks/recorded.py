"""A callback whose reports are kept: in memory to draw from, and in the run's files."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.callbacks.drawing_thread import write_pictures
from lightning_hooks.callbacks.recording import Recorder
from lightning_hooks.callbacks.run_folder import ReportDir
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.plots.picture import picture
from lightning_hooks.plots.series import TABLES
from lightning_hooks.run_report.frame import frame

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

HISTORY_EPOCHS = 1000
HISTORY_ROWS = 100_000
"""A row of a report takes about 400 bytes: so many are some 40 MB, which 60 layers with 120 parameters reach after 550 epochs."""


class Recorded(HookedCallback):
    """Base class of a callback whose reports are kept.

    Args:
        modules: As for :class:`HookedCallback`.
        every_n_steps: As for :class:`HookedCallback`.
        report_dir: Where the run's reports and its health report are written: ``auto`` for the log directory, if a logger has
            one, another directory, or None for nowhere.
        progress_bar: Whether the progress bar shows the number of alerts (``alerts``) and the share of clipped steps
            (``clip_rate``) of the last epoch.

    Attributes:
        history: The reports of this fit's epochs, oldest first: the last 1000, of large models fewer.
        epoch_end_seconds: What the last epoch's end took.
        table_bytes: The size of the epoch's table.
    """

    prefix: ClassVar[str]
    selection: str
    report: Any

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_dir: ReportDir = "auto",
        progress_bar: bool = False,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        if not isinstance(progress_bar, bool):
            raise TypeError(f"progress_bar must be True or False; got {progress_bar!r}.")
        self.progress_bar = progress_bar
        report_dir = None if report_dir is False else report_dir
        if report_dir is not None and not isinstance(report_dir, (str, os.PathLike)):
            raise TypeError(f"report_dir must be 'auto', a directory, or None for nowhere; got {report_dir!r}.")
        self.report_dir = report_dir
        self.history: deque[Any] = deque(maxlen=HISTORY_EPOCHS)
        self.epoch_end_seconds = math.nan
        self.table_bytes = 0
        self._recorder: Recorder | None = None
        self._warned_of_leaving = False

    def plot(self, stat: str | None = None) -> Figure:
        """Draw what was reported in this fit: a matplotlib figure.

        Args:
            stat: A statistic, such as ``rms``, for a heat map of all layers over the epochs; None for what tells most.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there is no report yet, or no such statistic.
        """
        return picture(self._reports(), stat)

    def to_frame(self) -> pandas.DataFrame:
        """Return what was reported in this fit as a pandas table: a row for each epoch and each module, parameter or optimizer.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet.
        """
        return frame(self._reports())

    def _reports(self) -> list[Any]:
        if not self.history:
            raise ValueError(f"{type(self).__name__} has no report yet; it has its first after an epoch of trainer.fit().")
        return list(self.history)

    def remember(self) -> None:
        """Take the last epoch's report into the history, once."""
        report = self.report
        if report is None or (self.history and self.history[-1] is report):
            return
        if not self.history:
            rows = sum(len(getattr(report, table, ())) for table in TABLES)
            self.history = deque(maxlen=max(1, min(HISTORY_EPOCHS, HISTORY_ROWS // max(rows, 1))))
        elif self.history[-1].epoch == report.epoch:
            self.history.pop()
        self.history.append(report)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.history.clear()
        self._warned_of_leaving = False
        super().on_train_start(trainer, pl_module)
        self._recorder = Recorder.join(self, trainer, pl_module)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._recorder is not None:
            self._recorder.epoch_starts(self)

    def record(self, trainer: Trainer, peers: Sequence[Recorded]) -> None:
        """An epoch's reports of all monitors are final: keep them, write them, and say the least of them beside the progress bar.

        Args:
            trainer: The trainer.
            peers: The monitors, of which this is the last.
        """
        for peer in peers:
            peer.remember()
        for recorder in {id(peer._recorder): peer._recorder for peer in peers}.values():
            if recorder is not None:
                recorder.write([peer for peer in peers if peer._recorder is recorder])
        if any(peer.progress_bar for peer in peers):
            trainer.progress_bar_metrics.update(in_short(peers))

    @property
    def records(self) -> bool:
        """Whether what it reports is written."""
        return self._recorder is not None

    def leave(self, trainer: Trainer, how: str, error: BaseException | None = None) -> None:
        """Training is over: with the last monitor the run's report is written. Harmless when it was over before."""
        recorder, self._recorder = self._recorder, None
        try:
            self.remember()
            if how != "finished":  # else the last monitor has written them
                write_pictures(trainer, self.trackers(trainer), last=True)
        finally:
            if recorder is not None:
                recorder.leave(self, trainer, how, error)

    def leave_safely(self, trainer: Trainer, how: str, error: BaseException | None = None) -> None:
        """As :meth:`leave`; what goes wrong there is one warning a fit: Lightning asks no callback after one that raises."""
        try:
            self.leave(trainer, how, error)
        except Exception as fault:  # noqa: BLE001  whatever it is, the run's own end goes first
            if self._warned_of_leaving:
                return
            self._warned_of_leaving = True
            rank_zero_warn(
                f"{type(self).__name__}: the end of its record raised {type(fault).__name__}: {fault}. The health report may be "
                "incomplete; hooks are removed and training is not affected."
            )

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        try:
            if not self.elsewhere(trainer):
                how = "interrupted" if isinstance(exception, KeyboardInterrupt) else "exception"
                self.leave_safely(trainer, how, exception)
        finally:
            super().on_exception(trainer, pl_module, exception)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        try:
            if not self.elsewhere(trainer):
                self.leave_safely(trainer, "stopped")
        finally:
            super().teardown(trainer, pl_module, stage)

    @override
    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_recorder": None}


def in_short(monitors: Sequence[Recorded]) -> dict[str, Any]:
    """What the progress bar shows: how many alerts there are, and the share of clipped steps."""
    reports = [monitor.report for monitor in monitors if monitor.report is not None]
    alerts = {(alert.kind, alert.site) for report in reports for alert in getattr(report, "alerts", ()) if alert.severity != "info"}
    rates = [stats.rate for report in reports for stats in getattr(report, "optimizers", {}).values() if not math.isnan(stats.rate)]
    return {"alerts": _Count(len(alerts)), **({"clip_rate": max(rates)} if rates else {})}


class _Count(int):
    """A whole number that stays one in a progress bar, whichever format the bar has for numbers."""

    def __format__(self, form: str) -> str:
        return str(int(self))
