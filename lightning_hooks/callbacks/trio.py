"""The one line that most people need."""

from __future__ import annotations

from typing import Any

from lightning_hooks.alerts import RULES, ClipReport, FeatureReport, GradientFlowReport
from lightning_hooks.alerts.rulebook import hand_out
from lightning_hooks.callbacks.alerting import OnAlert, Rules
from lightning_hooks.callbacks.closing import Summary
from lightning_hooks.callbacks.feature_stats import FeatureStatsMonitor
from lightning_hooks.callbacks.gradient_clip import GradientClipMonitor
from lightning_hooks.callbacks.gradient_flow import GradientFlowMonitor
from lightning_hooks.callbacks.logged import Logged, of_each
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.callbacks.publishing import Histograms
from lightning_hooks.callbacks.run_folder import ReportDir
from lightning_hooks.hooks import ModuleSelector


def monitors(
    *,
    modules: ModuleSelector | None = None,
    every_n_steps: int = 10,
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
) -> list[Monitor]:  # type: ignore[type-arg]  # three monitors, each with a report of its own
    """Return the trio: feature statistics, gradient flow and clipping events.

    Args:
        modules: Where the first two listen; None for every leaf that computes something.
        every_n_steps: Which training batches they listen to. Clip events are counted at every step.
        on_alert: ``log``, ``warn``, ``stop``, ``raise``, or a function of an Alert.
        rules: Rules to change, mute or add, each for the monitor whose reports it reads; see
            :class:`~lightning_hooks.alerts.RuleBook`. A function says which by the annotation of its first parameter.
        summary: What is printed at the end of training: True for three lines of all monitors together, ``full`` for tables before
            them, False for nothing.
        logged: Which statistics of modules and parameters are logged: ``auto`` for at most 100 tags in all, ``all``, or names.
        max_overhead: The share of the training step's time that the three together may cost, such as 0.01: they sample more
            thinly than ``every_n_steps`` where that takes more. None for no limit.
        report_dir: Where the run's reports and one health report of all three are written: ``auto`` for the log directory, if a
            logger has one, another directory, or None for nowhere.
        histograms: Log histograms of outputs and of their gradients: True for up to 128 modules, or glob patterns on names.
        figures: Log pictures, drawn next to training: True after epochs 0, 1, 2, 4, 8, …, n after every nth epoch, and at the
            end; needs matplotlib. Heat maps of the statistics that ``logged`` names, or of the RMS; at the end of training of all.
        check_every_n_steps: Look for what is urgent (values that are not finite, gradients that explode) every n steps within the
            epoch, so that ``stop`` and ``raise`` can act before it ends. None for at its end only.
        progress_bar: Whether the progress bar shows the number of alerts and the share of clipped steps.

    Returns:
        A list for ``Trainer(callbacks=…)``.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import monitors
        >>> trainer = Trainer(callbacks=monitors(), logger=False)
    """
    handed = hand_out(rules, RULES)
    feature_tags, flow_tags = of_each(logged, FeatureStatsMonitor.ranking, GradientFlowMonitor.ranking)
    shared: dict[str, Any] = {
        "on_alert": on_alert,
        "summary": summary,
        "report_dir": report_dir,
        "figures": figures,
        "progress_bar": progress_bar,
    }
    where: dict[str, Any] = {
        **shared,
        "modules": modules,
        "every_n_steps": every_n_steps,
        "max_overhead": max_overhead,
        "histograms": histograms,
        "check_every_n_steps": check_every_n_steps,
    }
    features = FeatureStatsMonitor(rules=handed[FeatureReport], logged=feature_tags, **where)
    flow = GradientFlowMonitor(rules=handed[GradientFlowReport], logged=flow_tags, **where)
    clip = GradientClipMonitor(rules=handed[ClipReport], **shared)
    clip.selection = features.selection  # so that two trios can stand side by side
    return [features, flow, clip]
