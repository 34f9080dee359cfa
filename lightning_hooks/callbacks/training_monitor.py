"""TrainingMonitor: all monitors in one callback."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.alerts import Alert, AttentionReport, ClipReport, FeatureReport, GradientFlowReport, RouterReport
from lightning_hooks.callbacks.monitor import SessionCallback
from lightning_hooks.callbacks.monitors import monitors
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.run_report.shown import RunReport
from lightning_hooks.session.closing import open_alerts, verdict_of
from lightning_hooks.session.history import History
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Histograms, Logged, OnAlert, ReportDir, ReportEvery, Rules, Summary
from lightning_hooks.session.so_far import run_report

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

NAMES = {"gradient_flow": "gradients", "gradient_clip": "clipping"}
"""The prefix of a monitor's tags to its name here, where they differ."""


class TrainingMonitor(SessionCallback):
    """Observes a training: feature statistics, gradient flow and clipping events, with alerts and one health report.

    It is :class:`~lightning_hooks.FeatureStatsMonitor`, :class:`~lightning_hooks.GradientFlowMonitor` and
    :class:`~lightning_hooks.GradientClipMonitor` in one callback, and logs what they log. Training is not altered.

    Args:
        modules: Which modules are observed: a glob pattern on the names of ``named_modules()``, a module type (in YAML its full
            name, such as ``torch.nn.ReLU``), several of these, or a predicate of (name, module). None for every leaf that computes
            something.
        every_n_steps: Training batches 0, n, 2n, … of each window are sampled. Clip events are counted at every step.
        report_every_n_steps: The window that a report, logged values and alerts cover: this many training batches, None for an
            epoch, or ``auto``: epochs of up to 2000 batches, and windows of 500 where they are longer or have no known length.
            Windows shorter than an epoch are merged at its end to a report of the epoch, which is logged as ``<tag>_epoch``.
        on_alert: What is done with a new alert: ``log`` it, ``warn`` (a Python warning), ``stop`` the fit after this window,
            ``raise`` an :class:`~lightning_hooks.alerts.AlertError`; a function that is called with each; or a list of these. An
            ``info`` is only counted, or handed to the function. An alert that lasts is passed on once.
        rules: Rules to change, mute or add: ``Dead(threshold=0.8, sites="encoder.*")``, ``"-silent"``, a function from a report to
            alerts (the annotation of its first parameter says which report), and so on; see
            :class:`~lightning_hooks.alerts.RuleBook`.
        summary: What is printed at the end of training: True for three lines (the verdict, the open alerts, where the report is),
            ``full`` for tables before them, False for nothing.
        logged: Which statistics are logged: ``auto`` for those of every site in models of up to 8 modules, and in larger ones the
            median and the worst of the model and the sites that had an alert, at most 100 tags in all; ``all``, or names of
            statistics, for these of every site. Reports and ``callback_metrics`` always have all.
        max_overhead: The share of the training step's time that all monitors together may cost, such as 0.01: fewer batches are
            sampled than ``every_n_steps`` says where that costs more. None for no limit.
        report_dir: Where the run's reports and its health report are written: ``auto`` for the log directory, if a logger has
            one, another directory, or None for nowhere.
        histograms: Whether loggers get histograms of outputs and of their gradients: True for up to 128 modules, spread evenly, or
            glob patterns on names.
        figures: Whether loggers get figures, drawn next to training: True after windows 0, 1, 2, 4, 8, …, n after every nth window;
            and at the end. Heat maps of the statistics that ``logged`` names, or of the RMS; at the end of all. Needs matplotlib.
        check_every_n_steps: Look for values that are not finite every n steps within the window, so that ``stop`` and ``raise`` can
            act before it ends. None for at its end only.
        progress_bar: Whether the progress bar shows the number of alerts and the share of clipped steps.
        functional: Whether calls of functions (attention, activations, normalisations, embeddings, ``cross_entropy``) are sites
            as modules are, named after the module that makes them, such as ``blocks.3.attn/sdpa``. Patterns in ``modules`` select
            them by these names, or with their module. They are not seen under ``torch.compile``.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range, or, at train start, if ``modules`` matches nothing.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import TrainingMonitor
        >>> trainer = Trainer(callbacks=[TrainingMonitor()], logger=False)
    """

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        histograms: Histograms = False,
        figures: bool | int = False,
        check_every_n_steps: int | None = None,
        progress_bar: bool = False,
        functional: bool = True,
    ) -> None:
        super().__init__()
        self._features, self._gradients, self._clipping = self._parts = monitors(
            modules=modules,
            every_n_steps=every_n_steps,
            report_every_n_steps=report_every_n_steps,
            on_alert=on_alert,
            rules=rules,
            summary=summary,
            logged=logged,
            max_overhead=max_overhead,
            report_dir=report_dir,
            histograms=histograms,
            figures=figures,
            check_every_n_steps=check_every_n_steps,
            progress_bar=progress_bar,
            functional=functional,
        )

    @property
    @override
    def members(self) -> Sequence[Member]:
        return [member for part in self._parts for member in part.members]

    @override
    def joining(self, trainer: Trainer, pl_module: LightningModule) -> Sequence[Member]:
        return [member for part in self._parts for member in part.joining(trainer, pl_module)]

    @property
    def features(self) -> FeatureReport | None:
        """The latest report of module outputs; None before the first."""
        report: FeatureReport | None = self._features.report
        return report

    @property
    def attention(self) -> AttentionReport | None:
        """The latest report of attention; None before the first, and where the model has none or an AttentionMonitor reports it."""
        report: AttentionReport | None = self._features.attention  # type: ignore[attr-defined]  # the first is FeatureStatsMonitor
        return report

    @property
    def routers(self) -> RouterReport | None:
        """The latest report of routers; None before the first, and where the model has none or a RouterMonitor reports it."""
        report: RouterReport | None = self._features.routers  # type: ignore[attr-defined]  # as above
        return report

    @property
    def gradients(self) -> GradientFlowReport | None:
        """The latest report of gradients; None before the first."""
        report: GradientFlowReport | None = self._gradients.report
        return report

    @property
    def clipping(self) -> ClipReport | None:
        """The latest report of clipping events; None before the first."""
        report: ClipReport | None = self._clipping.report
        return report

    @property
    def history(self) -> dict[str, deque[Any]]:
        """The reports of this fit, oldest first, of ``features``, ``gradients``, ``clipping``, ``attention`` and ``routers``."""
        return {NAMES.get(member.kind.prefix, member.kind.prefix): member.history.reports for member in self.members}

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
        known = {NAMES.get(member.kind.prefix, member.kind.prefix): member.history for member in self.members}
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
        known = any(member.problems.windows or member.end for member in self.members)
        return verdict_of(self.members).headline if known else ""

    @override
    def state_dict(self) -> dict[str, Any]:
        return {member.kind.prefix: member.state_dict() for member in self.members}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for member in self.members:
            member.load_state_dict(state_dict.get(member.kind.prefix, {}))

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(modules=self._features.member.selection)
