"""GradientClipMonitor: what clipping really did."""

from __future__ import annotations

from typing import Any, ClassVar

from lightning_hooks.alerts import ClipReport
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.session.settings import OnAlert, ReportDir, ReportEvery, Rules, Settings, Summary


class GradientClipMonitor(Monitor[ClipReport]):
    """Logs the events of gradient clipping, whoever clips: Lightning, a ``configure_gradient_clipping`` of the user's, a callback.

    At every optimizer step it compares the gradients' norms before clipping with those the step is taken with. It distinguishes
    clipped, skipped (by a loss scaler) and non-finite steps, and names the parameters that caused the clips.

    Logged each window: ``gradient_clip/<stat>`` (``gradient_clip/<optimizer>/<stat>`` where there are several optimizers)
    with stat one of steps, clipped_steps, rate, norm_before, norm_before_max, norm_after, norm_after_max, coefficient,
    nonfinite_steps, skipped_steps; and ``gradient_clip/alerts/<kind>``.

    The arguments are those of :class:`~lightning_hooks.TrainingMonitor`. ``report`` is the last window's
    :class:`~lightning_hooks.alerts.ClipReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientClipMonitor
        >>> trainer = Trainer(callbacks=[GradientClipMonitor()], gradient_clip_val=1.0, logger=False)
    """

    collector: ClassVar[type[Collector[Any]]] = ClipCollector

    def __init__(
        self,
        *,
        report_every_n_steps: ReportEvery = "auto",
        on_alert: OnAlert = "log",
        rules: Rules = (),
        summary: Summary = True,
        report_dir: ReportDir = "auto",
        figures: bool | int = False,
        progress_bar: bool = False,
    ) -> None:
        super().__init__(
            Settings(
                report_every_n_steps=report_every_n_steps,
                on_alert=on_alert,
                rules=rules,
                summary=summary,
                report_dir=report_dir,
                figures=figures,
                progress_bar=progress_bar,
            )
        )
