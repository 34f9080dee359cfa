"""What is reported of clipping in a window, and drawn of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from typing_extensions import override

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.clipping.watch import StepEvents
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import STEP
from lightning_hooks.declare.window import Moment, Report
from lightning_hooks.plots.series import as_reports, beginnings


@dataclass(frozen=True, slots=True, repr=False)
class ClipReport(Report):
    """What clipping did in one window.

    Attributes:
        optimizers: Optimizer name (``0-Adam``) to what happened at its steps.
        events: Optimizer name to what happened at single steps of it.
    """

    subject: ClassVar[str] = "Clipping"

    optimizers: dict[str, ClipStats]
    events: dict[str, StepEvents] = field(default_factory=dict)

    def first_norm(self, optimizer: str) -> float:
        """The larger mean norm before clipping of training's first two windows; NaN where they are not over."""
        norms = [report.optimizers[optimizer].norm_before for report in self.earlier if optimizer in report.optimizers]
        return max(norms[:2]) if len(norms) > 1 else math.nan

    @override
    def moment_of(self, alert: Alert) -> Moment:
        # An optimizer is no layer: a site that is sampled later is more precise, and is reported with this batch.
        return STEP, math.inf if alert.site in self.events else None, 1


NORMS = ("norm_before", "norm_before_max", "norm_after", "norm_after_max")
# What happened to a step, to its statistic, and the colour and hatching of its bar.
OUTCOMES = (
    ("clipped", "clipped_steps", canvas.SKY, ""),
    ("skipped", "skipped_steps", canvas.PURPLE, "///"),
    ("non-finite", "nonfinite_steps", canvas.VERMILLION, "xxx"),
)


@canvas.style()
def clip_history(reports: ClipReport | Sequence[ClipReport]) -> canvas.Figure:
    """Draw the total gradient norm before and after clipping over the epochs, and the share of steps that were clipped.

    Lines are means over an epoch's steps, bands reach to its largest step. Each optimizer has a column of its own.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not ClipReports.
        ValueError: If there is none.
    """
    ordered = as_reports(reports, ClipReport, "GradientClipMonitor")
    names = list(dict.fromkeys(name for report in ordered for name in report.optimizers))
    if not names:
        return canvas.nothing("Gradient clipping", "There was no optimizer.")
    wide = canvas.within(3.4 + 0.12 * len(ordered), 5.6, 11.0)
    figure = canvas.sheet(wide if len(names) == 1 else min(wide, 5.0) * len(names), 5.6)
    grid = figure.subplots(2, len(names), sharex="col", sharey="row", height_ratios=[3, 1.3], squeeze=False)
    drawn = [_draw(name, ordered, above, below) for name, above, below in zip(names, *grid, strict=True)]
    canvas.decades(grid[0, 0], np.concatenate(drawn))
    grid[0, 0].set_ylabel("total gradient norm (L2)")
    grid[1, 0].set_ylabel("share of steps")
    handles = {label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    alerts = [alert for report in ordered for alert in report.alerts if alert.site in names]
    canvas.legend(figure, [*handles.values(), *canvas.alert_handles(alerts)])
    return figure


def _draw(optimizer: str, reports: Sequence[ClipReport], above: canvas.Axes, below: canvas.Axes) -> np.ndarray:
    """Draw one optimizer's norms and shares, and return the norms."""
    rows, x = [report.optimizers.get(optimizer) for report in reports], np.arange(len(reports))
    numbers = {
        stat: np.array([np.nan if row is None else getattr(row, stat) for row in rows], dtype=float)
        for stat in (*NORMS, *("steps", "limit"), *(stat for _, stat, *_ in OUTCOMES))
    }
    for when, color, marker in (("before", canvas.BLUE, "o"), ("after", canvas.ORANGE, "s")):
        mean, top = numbers[f"norm_{when}"], numbers[f"norm_{when}_max"]
        y = np.where(mean > 0, mean, np.nan)
        above.fill_between(x, y, top, color=color, alpha=0.18, lw=0)
        above.plot(x, y, color=color, marker=marker, ms=4 if len(x) <= 60 else 1.5, label=f"{when} clipping: mean, to the largest")
    limits = numbers["limit"][np.isfinite(numbers["limit"])]
    if limits.size:
        above.axhline(limits[-1], color=canvas.INK, lw=1.0, ls=(0, (4, 3)), label=f"configured limit {limits[-1]:.3g}")
    attempted = np.maximum(np.nan_to_num(numbers["steps"] + numbers["skipped_steps"]), 1)
    bottom = np.zeros(len(x))
    for text, stat, color, hatch in OUTCOMES:
        share = np.nan_to_num(numbers[stat]) / attempted
        below.bar(x, share, 0.85, bottom, label=f"{text} steps" * bool(share.any()), color=color, hatch=hatch, ec="white", lw=0.3)
        bottom += share
    taken = int(np.nansum(numbers["steps"]))
    line = f"{np.nansum(numbers['clipped_steps']) / taken:.0%} of {taken} steps clipped" if taken else "no step was taken"
    canvas.heading(above, f"Gradient clipping, {optimizer}", line)
    below.set_ylim(0, 1)
    below.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
    below.set_xlim(-0.6, len(x) - 0.4)
    canvas.name_epochs(below, [report.at for report in reports], unit=reports[-1].unit)
    heights = [height if canvas.positive(height) else np.nan for height in numbers["norm_before"]]
    began = [(at, heights[at], alert.severity) for at, alert in beginnings(reports) if alert.site == optimizer]
    canvas.mark_alerts(above, began, edge=0.7)
    return np.concatenate([*(numbers[stat] for stat in NORMS), numbers["limit"]])
