"""The residual stream by depth."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.curves import layer_sheet, mark_affected, numbers_of, with_names
from lightning_hooks.plots.series import check_report

# The statistics of the residual stream that are drawn: name, text, colour and dashes.
STREAM = (
    ("rms", "all values", canvas.BLUE, "-"),
    ("channel_rms", "largest channel", canvas.ORANGE, "--"),
    ("median_channel_rms", "median channel", canvas.GREY, ":"),
)
OF_STREAM = ("activation_outliers", "residual_growth")  # the kinds of alerts that are marked there


@canvas.style()
def residual_stream(report: FeatureReport) -> Figure:
    """Draw the RMS of the residual stream by depth, on a log axis: all values, the largest channel and the median one.

    A line ends where another stack of blocks begins. Blocks with an alert are marked.

    Args:
        report: One window's.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a FeatureReport.
    """
    check_report(report, FeatureReport, "FeatureStatsMonitor")
    title, names = f"Residual stream, {report.when}", list(report.residual)
    if not names:
        return canvas.nothing(title, "The model is no stack of blocks that keep the shape of their input.")
    values = {stat: numbers_of(report.residual, stat) for stat, *_ in STREAM}
    known = np.concatenate(list(values.values()))
    if not canvas.positive(known).any():
        return canvas.nothing(title, f"The output of none of the {len(names)} blocks has a finite value above zero.")
    figure, axes = layer_sheet(names, title, "RMS of what each block hands on to the next", per_layer=0.25)
    canvas.decades(axes, known)
    stacks = [list(stack) for _, stack in groupby(range(len(names)), lambda at: report.residual[names[at]].stream)]
    handles: list[Any] = []
    for stat, text, color, dashes in STREAM:
        y = np.where(canvas.positive(values[stat]), values[stat], np.nan)
        drawn = [axes.plot(at, y[at], color=color, ls=dashes, marker="o", ms=3.5, lw=1.3)[0] for at in stacks]
        drawn[-1].set_label(text)
        handles.append(drawn[-1])
    handles += mark_affected(axes, names, values["rms"], [alert for alert in report.alerts if alert.kind in OF_STREAM])
    axes.set_ylabel("root mean square")
    return with_names(figure, axes, names, "block", handles)
