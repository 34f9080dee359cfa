"""monitors(): all monitors as a list."""

from __future__ import annotations

from lightning_hooks.callbacks.feature_stats import FeatureStatsMonitor
from lightning_hooks.callbacks.gradient_clip import GradientClipMonitor
from lightning_hooks.callbacks.gradient_flow import GradientFlowMonitor
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.session.settings import (
    CapsulePlace,
    Histograms,
    Learning,
    Logged,
    OnAlert,
    ReportDir,
    ReportEvery,
    Rules,
    Summary,
)
from lightning_hooks.session.training_members import arguments_of_each


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
    capsule: CapsulePlace = "auto",
    max_capsule_mb: float = 200,
    keep_batches: int = 0,
    learning: Learning = False,
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
    of_features, of_gradients, of_clipping = arguments_of_each(
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
        capsule=capsule,
        max_capsule_mb=max_capsule_mb,
        keep_batches=keep_batches,
        learning=learning,
    )
    features, gradients = FeatureStatsMonitor(**of_features), GradientFlowMonitor(**of_gradients)
    clipping = GradientClipMonitor(**of_clipping)
    clipping.selection = features.selection  # so that a checkpoint distinguishes two lists
    return [features, gradients, clipping]
