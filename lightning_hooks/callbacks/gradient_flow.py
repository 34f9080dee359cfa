"""GradientFlowMonitor: how gradients come back through the model, and what they do to its weights."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning_hooks.alerts import GradientFlowReport
from lightning_hooks.callbacks.monitor import SiteMonitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.diagnostics.learning.report import LearningReport


class GradientFlowMonitor(SiteMonitor[GradientFlowReport]):
    """Logs the gradients at module outputs and of parameters, and finds where they vanish, explode, stop or break.

    At modules: tensor hooks set from a forward hook, so models with in-place operations and any kind of output are fine. Of
    parameters: ``.grad`` at the optimizer step: reduced over ranks, accumulated, unscaled, before clipping; with the ratio of
    update to weight. Steps that a loss scaler skips do not count.

    Each epoch ``callback_metrics`` gets ``gradient_flow/<module>/<stat>`` (mean, std, min, max, rms, norm, zero_fraction,
    nonfinite_fraction), ``gradient_flow/<parameter>/<stat>`` (norm, norm_max, rms, zero_fraction, nonfinite_steps,
    missing_steps, update_ratio, weight_norm, …), of each optimizer ``gradient_flow/0-Adam/<stat>`` (lr, update_rms, instability,
    stale_fraction), ``gradient_flow/total_norm``, of the whole model ``gradient_flow/model/<stat>_median`` and
    ``…_worst`` (rms of modules, norm and update_ratio of parameters) with ``model/rms_min`` and ``model/rms_max``, and
    ``gradient_flow/alerts/<kind>``. NaN where nothing was measured. Loggers get what ``logged`` says.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`, for gradients alone: ``modules`` chooses where the
    gradient at an output is recorded, parameters are always all observed, at the first optimizer step at or after each sampled
    batch.
    ``report`` is the last epoch's :class:`~lightning_hooks.alerts.GradientFlowReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientFlowMonitor
        >>> trainer = Trainer(callbacks=[GradientFlowMonitor(on_alert="warn")], logger=False)
    """

    @property
    def learning(self) -> LearningReport | None:
        """What of the training learns, in the last report; None before the first, and with ``learning=False``."""
        return None if self.report is None else self.report.learning

    collector: ClassVar[type[Collector[Any]]] = GradientCollector
