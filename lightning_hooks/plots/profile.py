"""Where the time of a training step goes, layer by layer."""

from __future__ import annotations

import numpy as np

from lightning_hooks.plots.canvas import BLUE, GREY, MISSING, ORANGE, SKY, Figure, heading, legend, nothing, plain, single, style
from lightning_hooks.plots.names import shortened
from lightning_hooks.profiling.report import ProfileReport

# Recomputation next to backward, of which it is part; grey for what no layer spends.
_PARTS = (("forward", BLUE), ("recompute", SKY), ("backward", ORANGE))


@style()
def layer_times(report: ProfileReport, *, top: int = 30) -> Figure:
    """Draw the self time of each layer in a step as a bar, longest first: forward, recomputation, backward.

    The whisker ends at the 95th percentile over the measured steps. Below the layers is what is outside all of them, so
    that all bars together are the step.

    Args:
        report: One epoch's, or a session's.
        top: So many layers have a bar of their own; the rest share one.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a ProfileReport.
        ValueError: If ``top`` is below 1.
    """
    if not isinstance(report, ProfileReport):
        raise TypeError(f"expected a ProfileReport, such as LayerProfiler's report; got {type(report).__name__}.")
    if top < 1:
        raise ValueError(f"top must be at least 1; got {top!r}.")
    title = f"Time per layer, epoch {report.epoch}"
    if not report.measured_steps:
        return nothing(title, f"Nothing was measured in {report.batches} batches: all were warm-up.")
    ranked = sorted(report.sites.items(), key=lambda item: -item[1].self_time.mean)
    named, rest = ranked[:top], ranked[top:]
    bars = [(name, [getattr(times, f"{part}_self").mean for part, _ in _PARTS], times.self_time.p95) for name, times in named]
    if rest:
        means = [sum(getattr(times, f"{part}_self").mean for _, times in rest) for part, _ in _PARTS]
        bars.append((f"{len(rest)} more layers", means, float("nan")))
    outside = [report.outside_forward.mean, 0.0, report.outside_backward.mean]
    bars.append(("outside all layers", outside, float("nan")))
    figure, axes = single(8.0, float(np.clip(1.7 + 0.21 * (len(bars) + 1), 3.0, 14.0)))
    step = report.step_time
    line = f"Self time in a step of {step.mean:.4g} ms on {report.device}, mean of {report.measured_steps} steps; "
    line += "the line ends at the 95th percentile"
    heading(axes, title, line, 6.0)
    rows = np.arange(len(bars))
    left = np.zeros(len(bars))
    handles = []
    for index, (part, color) in enumerate(_PARTS):
        widths = np.array([means[index] for _, means, _ in bars])
        if part == "recompute" and not widths.any():
            continue
        handles.append(axes.barh(rows, widths, 0.72, left=left, color=color, label=part))
        left = left + widths
    other = axes.barh([len(bars)], [report.other_time.mean], 0.72, color=MISSING, label="optimizer, callbacks, logging")
    late = np.array([p95 for _, _, p95 in bars])
    shown = np.isfinite(late)
    axes.hlines(rows[shown], np.minimum(left, late)[shown], late[shown], color=GREY, lw=1.0)
    axes.set_yticks([*rows, len(bars)], [plain(shortened(name)).replace("\n", "\\n") for name, _, _ in bars] + ["other"])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(len(bars) + 0.6, -0.6)
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    axes.set_xlabel("milliseconds in a step")
    legend(figure, [*handles, other])
    return figure
