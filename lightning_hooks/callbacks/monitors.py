"""monitors(): all monitors as a list."""

from __future__ import annotations

from typing import Any

from lightning_hooks.alerts import RULES, AttentionReport, ClipReport, FeatureReport, GradientFlowReport, RouterReport
from lightning_hooks.alerts.rulebook import hand_out
from lightning_hooks.callbacks.feature_stats import FeatureStatsMonitor
from lightning_hooks.callbacks.gradient_clip import GradientClipMonitor
from lightning_hooks.callbacks.gradient_flow import GradientFlowMonitor
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.collectors.attention import AttentionCollector
from lightning_hooks.collectors.features import FeatureCollector
from lightning_hooks.collectors.gradients import GradientCollector
from lightning_hooks.collectors.routers import RouterCollector
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.session.logged import of_each
from lightning_hooks.session.settings import Histograms, Logged, OnAlert, ReportDir, ReportEvery, Rules, Summary


def monitors(
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
) -> list[Monitor]:  # type: ignore[type-arg]  # three monitors, each with a report of its own
    """Return feature statistics, gradient flow and clipping events as three callbacks.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, which is the same in one callback.

    Returns:
        A list for ``Trainer(callbacks=…)``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import monitors
        >>> trainer = Trainer(callbacks=monitors(), logger=False)
    """
    handed = hand_out(rules, RULES)
    ranking = (*FeatureCollector.ranking, *AttentionCollector.ranking, *RouterCollector.ranking)
    feature_tags, gradient_tags = of_each(logged, ranking, GradientCollector.ranking)
    shared: dict[str, Any] = {
        "report_every_n_steps": report_every_n_steps,
        "on_alert": on_alert,
        "summary": summary,
        "report_dir": report_dir,
        "figures": figures,
        "progress_bar": progress_bar,
    }
    of_sites: dict[str, Any] = {
        **shared,
        "modules": modules,
        "every_n_steps": every_n_steps,
        "max_overhead": max_overhead,
        "histograms": histograms,
        "check_every_n_steps": check_every_n_steps,
    }
    of_features = list(
        {id(rule): rule for report in (FeatureReport, AttentionReport, RouterReport) for rule in handed[report]}.values()
    )
    features = FeatureStatsMonitor(rules=of_features, logged=feature_tags, functional=functional, **of_sites)
    gradients = GradientFlowMonitor(rules=handed[GradientFlowReport], logged=gradient_tags, **of_sites)
    clipping = GradientClipMonitor(rules=handed[ClipReport], **shared)
    clipping.selection = features.selection  # so that a checkpoint distinguishes two lists
    return [features, gradients, clipping]
