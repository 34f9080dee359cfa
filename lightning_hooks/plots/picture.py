"""The picture that suits reports best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_hooks.diagnostics.attention.report import AttentionReport
from lightning_hooks.diagnostics.reports import ClipReport, FeatureReport, GradientFlowReport, Report
from lightning_hooks.diagnostics.routers.report import RouterReport
from lightning_hooks.plots.attention import attention_heads
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.clip import clip_history
from lightning_hooks.plots.flow import gradient_flow
from lightning_hooks.plots.heat import dead_units, heatmap
from lightning_hooks.plots.routers import expert_load
from lightning_hooks.plots.series import as_reports


def picture(reports: Report | Sequence[Report], stat: str | None = None) -> Figure:
    """Draw reports: one statistic as a heat map, or the default figure of their kind.

    That is the gradient flow of the last epoch, the history of clipping, the load of experts, the width of quantisation steps,
    and of outputs the dead units of rectifiers, or, where there is no rectifier, the spread of every module's output.

    Args:
        reports: One or several of one kind; any order.
        stat: A field of their statistics, such as ``rms``.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not reports of one kind.
        ValueError: If there is none, or none has the statistic.
    """
    ordered: list[Any] = as_reports(reports)
    last = ordered[-1]
    if isinstance(last, AttentionReport):
        return attention_heads(last, stat or "entropy")
    if stat is not None:
        return heatmap(ordered, stat)
    if isinstance(last, GradientFlowReport):
        return gradient_flow(last)
    if isinstance(last, FeatureReport):
        rectifiers = any(stats.dead_fraction is not None for report in ordered for stats in report.sites.values())
        return dead_units(ordered) if rectifiers else heatmap(ordered, "std")
    if isinstance(last, RouterReport):
        return expert_load(ordered)
    return clip_history(ordered) if isinstance(last, ClipReport) else heatmap(ordered, "scale")
