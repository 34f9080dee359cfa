"""The reports of all members together, as TrainingMonitor and watch give them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_hooks.alerts import Alert, AttentionReport, ClipReport, FeatureReport, GradientFlowReport, RouterReport
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.run_report.page import RunReport
from lightning_hooks.run_report.verdict import Status
from lightning_hooks.session.closing import open_alerts, run_report, verdict_of
from lightning_hooks.session.history import History
from lightning_hooks.session.member import Member

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

T = TypeVar("T")

NAMES = {"gradient_flow": "gradients", "gradient_clip": "clipping"}
"""The prefix of a monitor's tags to its name here, where they differ."""


class TrainingReports(ABC):
    """What several members have reported."""

    @property
    @abstractmethod
    def members(self) -> Sequence[Member]:
        """What it measures."""

    def _latest(self, name: str, _: type[T]) -> T | None:
        return next((member.latest_report for member in self.members if _name(member) == name), None)

    @property
    def features(self) -> FeatureReport | None:
        """The latest report of module outputs; None before the first."""
        return self._latest("features", FeatureReport)

    @property
    def attention(self) -> AttentionReport | None:
        """The latest report of attention; None before the first, and where the model has none or an AttentionMonitor reports it."""
        report = self._latest("attention", AttentionReport)
        return report if report is not None and report.sites else None

    @property
    def routers(self) -> RouterReport | None:
        """The latest report of routers; None before the first, and where the model has none or a RouterMonitor reports it."""
        return self._latest("routers", RouterReport)

    @property
    def gradients(self) -> GradientFlowReport | None:
        """The latest report of gradients; None before the first."""
        return self._latest("gradients", GradientFlowReport)

    @property
    def learning(self) -> LearningReport | None:
        """What of the training learns, in the latest report of gradients; None before the first, and with ``learning=False``."""
        return None if self.gradients is None else self.gradients.learning

    @property
    def clipping(self) -> ClipReport | None:
        """The latest report of clipping events; None before the first."""
        return self._latest("clipping", ClipReport)

    @property
    def history(self) -> dict[str, deque[Any]]:
        """The reports of this fit, oldest first, of ``features``, ``gradients``, ``clipping``, ``attention`` and ``routers``."""
        return {_name(member): member.history.reports for member in self.members}

    @property
    def report(self) -> RunReport:
        """The health report of the run so far, which a notebook shows; its ``.path`` is the page on disk."""
        return run_report(self.members)

    def plot(self, stat: str | None = None, monitor: str = "features") -> Figure:
        """Draw what was reported in this fit: a matplotlib figure.

        Args:
            stat: A statistic, such as ``rms``, for a heat map of all layers over the windows; None for what suits the reports best.
            monitor: ``features``, ``gradients``, ``clipping``, ``attention`` or ``routers``.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there is no report yet, no such statistic or no such monitor.
        """
        return self._history_of(monitor).plot(stat)

    def to_frame(self, monitor: str = "features") -> pandas.DataFrame:
        """Return what was reported in this fit as a pandas table: a row for each window and each module, parameter or optimizer.

        Args:
            monitor: ``features``, ``gradients``, ``clipping``, ``attention`` or ``routers``.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet or no such monitor.
        """
        return self._history_of(monitor).to_frame()

    def _history_of(self, monitor: str) -> History:
        known = {_name(member): member.history for member in self.members}
        if monitor not in known:
            raise ValueError(f"monitor must be one of {', '.join(known)}; got {monitor!r}.")
        return known[monitor]

    @property
    def alerts(self) -> list[Alert]:
        """The open alerts: root causes above info that last, the most severe first, each as it was first passed on."""
        return open_alerts(self.members)

    @property
    def verdict(self) -> str:
        """The verdict of the run so far, as at its end and in the health report; empty before the first report."""
        known = any(member.has_reported or member.end for member in self.members)
        return verdict_of(self.members).headline if known else ""

    @property
    def status(self) -> Status:
        """The verdict in a word: ``failed``, ``critical``, ``warning``, ``healthy`` or ``unknown``, as before the first report."""
        return verdict_of(self.members).status


def _name(member: Member) -> str:
    return NAMES.get(member.kind.prefix, member.kind.prefix)
