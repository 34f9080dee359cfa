"""FeatureStatsMonitor: what every layer puts out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lightning.pytorch import Trainer
from torch import nn
from typing_extensions import override

from lightning_hooks.alerts import AttentionReport, FeatureReport, RouterReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.hosts.lightning_api import callbacks_of
from lightning_hooks.session.built_in import BuiltIn
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Histograms, Logged, OnAlert, ReportDir, ReportEvery, Rules, Settings, Summary


class FeatureStatsMonitor(Monitor[FeatureReport]):
    """Logs exact epoch statistics of module outputs, and finds dead, saturated, constant and non-finite layers.

    Statistics pool every value of the sampled batches, of all calls and all ranks: they are those of the concatenated data, not
    means of batch means. A unit of a rectifier counts as dead if it fired in no sampled batch of the epoch, on any rank.

    Each epoch ``callback_metrics`` gets ``features/<module>/<stat>`` with stat one of mean, std, min, max, rms, zero_fraction,
    nonfinite_fraction, and where they apply dead_fraction and saturated_fraction (NaN while a module is silent);
    ``features/model/<stat>_median`` and ``features/model/<stat>_worst``, over all modules; and ``features/alerts/<kind>``, the
    number of alerts. Loggers get what ``logged`` says.

    Calls of functions are sites as modules are: ``blocks.3.attn/sdpa``, ``mlp/relu``, ``relu_1`` for the second call of the model
    itself.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, for outputs of modules and functions alone. ``report`` is
    the last epoch's :class:`~lightning_hooks.alerts.FeatureReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import FeatureStatsMonitor
        >>> trainer = Trainer(callbacks=[FeatureStatsMonitor(modules="encoder.*", every_n_steps=1)], logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = FeatureCollector

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
        self._built_in = BuiltIn(
            Settings(
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
        )
        super().__init__(self._built_in.own)

    @property
    @override
    def members(self) -> Sequence[Member]:
        return (self.member, *self._built_in.members)

    @override
    def joining(self, trainer: Trainer | None, model: nn.Module) -> Sequence[Member]:
        listed = () if trainer is None else {type(callback).__name__ for callback in callbacks_of(trainer)}
        return (self.member, *self._built_in.joining(model, listed))

    @property
    def attention(self) -> AttentionReport | None:
        """The latest report of attention; None before the first, and where the model has none or an AttentionMonitor reports it."""
        return self._built_in.attention_report

    @property
    def routers(self) -> RouterReport | None:
        """The latest report of routers; None before the first, and where the model has none or a RouterMonitor reports it."""
        return self._built_in.router_report

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), **{member.kind.prefix: member.state_dict() for member in self._built_in.members}}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for member in self._built_in.members:
            if member.kind.prefix in state_dict:
                member.load_state_dict(state_dict[member.kind.prefix])
