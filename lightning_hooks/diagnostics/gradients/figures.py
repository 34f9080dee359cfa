"""Gradients and updates, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.plots.canvas import (
    BLUE,
    GREEN,
    Figure,
    decades,
    nothing,
    positive,
    style,
)
from lightning_hooks.plots.layers import (
    by_role,
    dot_size,
    layer_sheet,
    mark_affected,
    mark_the_rest,
    numbers_of,
    patch,
    role_lines,
    spread_band,
    with_names,
)
from lightning_hooks.plots.series import check_report

HEALTHY_UPDATES = (1e-4, 1e-2)
"""Ratios of update to weight around the 1e-3 that Karpathy (2022) aims at, a decade to each side."""


@style()
def gradient_flow(report: GradientFlowReport, *, of: Literal["modules", "parameters"] = "modules") -> Figure:
    """Draw how large the gradient is at each layer, on a log axis, with alerts marked.

    Each role of layers (what its name says after the number of its block; weights and biases differ) has its own line: queries and
    normalisations differ a hundredfold in healthy runs. Drawn is the root mean square per element, comparable between layers of
    any size. Where there is one role only, a band shows the spread. For modules it reaches from the mean's magnitude up to the
    largest single value, for parameters from the mean norm to the largest, per root of the elements. A gradient that is zero, or
    has no finite value, is drawn at the bottom of the axis.

    Args:
        report: One window's.
        of: ``modules`` (the gradient at their outputs) or ``parameters`` (``.grad`` at the optimizer step).

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a GradientFlowReport.
        ValueError: If ``of`` is neither.
    """
    check_report(report, GradientFlowReport, "GradientFlowMonitor")
    if of not in ("modules", "parameters"):
        raise ValueError(f"of must be 'modules' or 'parameters'; got {of!r}.")
    table: Mapping[str, Any] = report.modules if of == "modules" else report.parameters
    title, names = f"Gradient flow, {report.when}", list(table)
    if not table:
        return nothing(title, f"No gradient arrived at any of the {of}.")
    rms = numbers_of(table, "rms")
    if of == "modules":
        low, high = abs(numbers_of(table, "mean")), np.maximum(abs(numbers_of(table, "min")), abs(numbers_of(table, "max")))
        band, unit = "|mean| to largest |value|", "gradient (loss per unit)"
        line = "RMS of the loss's gradient at each module's output; the loss is to the right"
        line += f"; no gradient arrived at {len(report.silent)} more" if report.silent else ""
    else:
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = numbers_of(table, "norm_max") / numbers_of(table, "norm")
        low, high = rms, rms * np.where(np.isfinite(ratio), ratio, 1.0)
        band, unit = "RMS to that of the largest step", "gradient (loss per unit of weight)"
        line = "RMS of each parameter's gradient at the optimizer step, before clipping"
    shown = positive(rms)
    if not shown.any():
        line = f"No gradient is finite and above zero at any of the {len(names)} {of}"
    figure, axes = layer_sheet(names, title, line)
    decades(axes, np.concatenate([rms, high]))
    roles = by_role(names)
    handles = spread_band(axes, shown, low, high, band) if len(roles) == 1 else []
    handles = role_lines(axes, roles, np.where(shown, rms, np.nan), len(names)) + handles
    handles += mark_the_rest(axes, rms, "gradient")
    handles += mark_affected(axes, names, rms, report.alerts)
    axes.set_ylabel(unit)
    return with_names(figure, axes, names, of[:-1], handles)


@style()
def update_ratios(report: GradientFlowReport) -> Figure:
    """Draw the size of each parameter's updates relative to its weights, on a log axis, with alerts marked.

    Shaded is a decade to each side of 1e-3, where healthy runs often are (Karpathy 2022). Far below, a parameter hardly
    learns; far above, it changes erratically.

    Args:
        report: One window's.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a GradientFlowReport.
    """
    check_report(report, GradientFlowReport, "GradientFlowMonitor")
    measured = {name: stats for name, stats in report.parameters.items() if stats.update_ratio is not None}
    title = f"Update ratios, {report.when}"
    if not measured:
        return nothing(title, "No update was measured: every weight is zero, or no step was taken.")
    names, values = list(measured), numbers_of(measured, "update_ratio")
    left_out = len(report.parameters) - len(names)
    figure, axes = layer_sheet(
        names, title, "‖update‖ / ‖weight‖ per optimizer step" + f"; {left_out} not measured" * bool(left_out)
    )
    decades(axes, np.concatenate([values, HEALTHY_UPDATES]))
    axes.axhspan(*HEALTHY_UPDATES, color=GREEN, alpha=0.1, lw=0)
    axes.axhline(1e-3, color=GREEN, lw=1.0)
    bias = np.array([name.rpartition(".")[2] == "bias" for name in names])
    handles: list[Any] = []
    for chosen, text, face in ((~bias, "weight", BLUE), (bias, "bias", "white")):
        if chosen.any():
            at = np.flatnonzero(chosen & positive(values))
            handles.append(
                axes.scatter(at, values[at], s=dot_size(len(names), 5.5) ** 2, color=face, ec=BLUE, zorder=3, label=text)
            )
    handles += [patch(GREEN, "a decade around 1e-3", 0.25)]
    handles += mark_the_rest(axes, values, "update")
    handles += mark_affected(axes, names, values, report.alerts)
    axes.set_ylabel("update / weight, no unit")
    return with_names(figure, axes, names, "parameter", handles)
