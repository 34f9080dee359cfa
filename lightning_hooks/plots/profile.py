"""Where the time of a training step goes, layer by layer, as a table."""

from __future__ import annotations

from collections.abc import Callable

from lightning_hooks.hooks.checks import check_choice
from lightning_hooks.profiling import LayerTimes, ProfileReport
from lightning_hooks.trackers.console import Table, some

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
