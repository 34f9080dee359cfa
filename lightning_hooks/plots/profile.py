"""Where the time of a training step goes, layer by layer: as a figure, and as a table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.hooks.checks import check_choice
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.profiling import LayerTimes, ProfileReport
from lightning_hooks.trackers.console import Table, shortened, some

NUMBERS: dict[str, Callable[[LayerTimes], object]] = {
    "calls": lambda times: times.calls,
    "forward ms": lambda times: times.forward_self.mean,
    "recompute ms": lambda times: times.recompute_self.mean,
    "backward ms": lambda times: times.backward_self.mean,
    "self ms": lambda times: times.self_time.mean,
    "std": lambda times: times.self_time.std,
    "p95": lambda times: times.self_time.p95,
    "share": lambda times: times.share,
    "total ms": lambda times: times.total_time.mean,
    "output MB": lambda times: times.output_bytes / 1e6,
    "memory MB": lambda times: None if times.memory_bytes is None else times.memory_bytes / 1e6,
}
COLUMNS = ("module", *NUMBERS)
_IF_ANY = ("recompute ms", "memory MB")
"""Columns that the terminal shows only if they have values."""
ORDERS = ("self", "total", "model")


def summary_lines(report: ProfileReport, top: int | None = None, sort: str = "self") -> list[str]:
    """Return a report as lines for the terminal."""
    if not report.measured_steps:
        return [
            f"Profile, epoch {report.epoch}: nothing was measured in its {report.batches} batches, which were warm-up. Lower "
            "warmup_steps, or train longer."
        ]
    step = report.step_time
    lines = [
        f"Profile, epoch {report.epoch}, on {report.device}: {report.measured_steps} of {report.batches} batches measured. "
        f"A step took {step.mean:.4g} ms (std {step.std:.3g}, p95 {step.p95:.4g}): forward {report.forward_time.mean:.4g}, "
        f"backward {report.backward_time.mean:.4g}, other {report.other_time.mean:.4g}; the profiler {report.overhead:.3g} ms more."
    ]
    rows = table_rows(report, sort)
    shown = [at for at, column in enumerate(COLUMNS) if column not in _IF_ANY or any(row[at] for row in rows)]
    lines.append(Table([COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows[:top]]))
    if top is not None and len(rows) > top:
        lines.append(f"  and {len(rows) - top} more.")
    outside = report.outside_forward.mean, report.outside_backward.mean
    lines.append(f"  Outside these modules: forward {outside[0]:.4g} ms, backward {outside[1]:.4g} ms.")
    if report.silent:
        lines.append(f"  Not called, or inside compiled code: {some(report.silent)}")
    return lines


def table_rows(report: ProfileReport, sort: str = "self") -> list[tuple[object, ...]]:
    """Return a report as rows for ``COLUMNS``."""
    check_choice("sort", sort, ORDERS)
    found = list(report.sites.items())
    if sort != "model":
        found.sort(key=lambda item: -getattr(item[1], f"{sort}_time").mean)
    return [(name, *(number(times) for number in NUMBERS.values())) for name, times in found]


# Recomputation next to backward, of which it is part; grey for what no layer spends.
_PARTS = (("forward", canvas.BLUE), ("recompute", canvas.SKY), ("backward", canvas.ORANGE))


@canvas.style()
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
        return canvas.nothing(title, f"Nothing was measured in {report.batches} batches: all were warm-up.")
    ranked = sorted(report.sites.items(), key=lambda item: -item[1].self_time.mean)
    named, rest = ranked[:top], ranked[top:]
    bars = [(name, [getattr(times, f"{part}_self").mean for part, _ in _PARTS], times.self_time.p95) for name, times in named]
    if rest:
        means = [sum(getattr(times, f"{part}_self").mean for _, times in rest) for part, _ in _PARTS]
        bars.append((f"{len(rest)} more layers", means, float("nan")))
    outside = [report.outside_forward.mean, 0.0, report.outside_backward.mean]
    bars.append(("outside all layers", outside, float("nan")))
    figure, axes = canvas.single(8.0, canvas.within(1.7 + 0.21 * (len(bars) + 1), 3.0, 14.0))
    step = report.step_time
    line = (
        f"Self time in a step of {step.mean:.4g} ms on {report.device}, mean of {report.measured_steps} steps; "
        "the line ends at the 95th percentile"
    )
    canvas.heading(axes, title, line, 6.0)
    names, means, ends = zip(*bars, strict=True)
    rows, left, late = np.arange(len(bars)), np.zeros(len(bars)), np.array(ends)
    for (part, color), widths in zip(_PARTS, np.transpose(means), strict=True):
        if part != "recompute" or widths.any():
            axes.barh(rows, widths, 0.72, left=left, color=color, label=part)
            left = left + widths
    axes.barh([len(bars)], [report.other_time.mean], 0.72, color=canvas.MISSING, label="optimizer, callbacks, logging")
    shown = np.isfinite(late)
    axes.hlines(rows[shown], np.minimum(left, late)[shown], late[shown], color=canvas.GREY, lw=1.0)
    axes.set_yticks([*rows, len(bars)], [canvas.plain(shortened(name)).replace("\n", "\\n") for name in names] + ["other"])
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.set_ylim(len(bars) + 0.6, -0.6)
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    axes.set_xlabel("milliseconds in a step")
    canvas.legend(figure, axes.get_legend_handles_labels()[0])
    return figure
