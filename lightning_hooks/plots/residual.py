"""The residual stream, block by block."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.plots.canvas import (
    BLUE,
    GREY,
    ORANGE,
    VERMILLION,
    Axes,
    Figure,
    alert_handles,
    along_layers,
    decades,
    heading,
    mark,
    nothing,
    single,
    style,
)
from lightning_hooks.plots.series import alerts_by_site, check_report, kinds_by_severity

LINES = (
    ("rms", "all values", BLUE, "-"),
    ("channel_rms", "largest channel", ORANGE, "--"),
    ("median_channel_rms", "median channel", GREY, ":"),
)
"""The statistics that are drawn: name, text, colour and dashes."""

KINDS = ("activation_outliers", "residual_growth")


@style()
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
    title = f"Residual stream, {report.when}"
    names, blocks = list(report.residual), list(report.residual.values())
    if not blocks:
        return nothing(title, "The model is no stack of blocks that keep the shape of their input.")
    figure, axes = single(float(np.clip(1.8 + 0.25 * len(names), 6.4, 16.0)), 4.6)
    heading(axes, title, "RMS of what each block hands on to the next", figure.get_figwidth() - 0.8)
    values = {stat: _positive([getattr(block, stat) for block in blocks]) for stat, *_ in LINES}
    known = np.concatenate(list(values.values()))
    known = known[np.isfinite(known)]
    if not known.size:
        return nothing(title, f"The output of none of the {len(blocks)} blocks has a finite value above zero.")
    decades(axes, known)
    handles: list[Any] = []
    parts = _parts([block.stream for block in blocks])
    for stat, text, color, dashes in LINES:
        for start, end in parts:
            drawn = axes.plot(range(start, end), values[stat][start:end], color=color, ls=dashes, marker="o", ms=3.5, lw=1.3)
        handles += [*drawn]
        drawn[0].set_label(text)
    handles += _marks(axes, names, values["rms"], [alert for alert in report.alerts if alert.kind in KINDS])
    axes.set_ylabel("root mean square")
    along_layers(figure, axes, names, "block", handles)
    return figure


def _positive(values: list[float]) -> np.ndarray:
    """The values that a log axis can show; NaN elsewhere."""
    found = np.array(values, dtype=float)
    return np.where(np.isfinite(found) & (found > 0), found, np.nan)


def _parts(streams: list[str]) -> list[tuple[int, int]]:
    """Where each stack of blocks starts and ends."""
    starts = [number for number, stream in enumerate(streams) if not number or streams[number - 1] != stream]
    return list(zip(starts, [*starts[1:], len(streams)], strict=True))


def _marks(axes: Axes, names: list[str], values: np.ndarray, alerts: list[Alert]) -> list[Any]:
    found = {site: some for site, some in alerts_by_site(alerts).items() if site in names}
    for site, some in sorted(found.items(), key=lambda item: -gravity(item[1][0].severity)):
        at = names.index(site)
        if np.isfinite(values[at]):
            mark(axes, some[0].severity, [at], [values[at]])
        else:
            axes.axvline(at, color=VERMILLION, lw=0.8)
    return alert_handles(kinds_by_severity(alerts)) if found else []
