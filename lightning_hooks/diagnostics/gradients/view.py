"""How gradients are shown: tags, charts, figures, and the table in the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.gradients.tables import GradientTable, ParameterTable
from lightning_hooks.diagnostics.learning.report import PARAMETER_STATS as LEARNING_PARAMETER_STATS
from lightning_hooks.diagnostics.learning.report import learning_scalars
from lightning_hooks.diagnostics.loss.report import loss_scalars
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.plots.canvas import GREEN, Figure, decades, nothing, positive, style
from lightning_hooks.plots.curves import layer_dots, layer_sheet, mark_affected, mark_the_rest, numbers_of, with_names
from lightning_hooks.plots.heat import heatmap
from lightning_hooks.plots.series import check_report
from lightning_hooks.statistics.rows import never_recorded
from lightning_hooks.trackers.console import Table, listed

# The statistics of a site, what matters most first.
RANKING = (
    *("rms", "update_ratio", "norm", "weight_norm", "nonfinite_fraction", "nonfinite_steps", "zero_fraction", "missing_steps"),
    *("norm_max", "update_ratio_max", "lost_fraction", "weight_rms"),
    *("std", "mean", "max", "min"),
)
MODULE_STATS = ("mean", "std", "min", "max", "rms", "norm", "zero_fraction", "nonfinite_fraction")
PARAMETER_STATS = (
    *("norm", "norm_max", "rms", "zero_fraction", "nonfinite_steps", "missing_steps", "update_ratio", "update_ratio_max"),
    *("weight_norm", "weight_rms"),
)
OPTIMIZER_STATS = ("update_rms", "instability", "stale_fraction")
BAND = ("median", "min", "max")


class GradientSites(Collector[GradientFlowReport]):
    """The sites of gradients, and what is shown of them.

    Attributes:
        modules: The table of the gradients at module outputs.
        parameters: That of the parameters' gradients.
    """

    prefix: ClassVar[str] = "gradient_flow"
    report_type: ClassVar[type[Report]] = GradientFlowReport
    ranking: ClassVar[tuple[str, ...]] = RANKING
    logged_by_default: ClassVar[tuple[str, ...] | None] = ("rms", "norm", "update_ratio", "weight_norm")
    modules: GradientTable
    parameters: ParameterTable
    _known: dict[str, set[str]]  # of each optimizer, what was measured so far

    @override
    def silent_sites(self) -> list[str]:
        pending = self.modules.pending
        return never_recorded(self.modules.names, self.modules.rows, *([] if pending is None else pending.records()))

    @property
    @override
    def names(self) -> list[str]:
        return [*self.modules.names, *self.parameters.names]

    @property
    @override
    def n_modules(self) -> int:
        return len(self.modules.names)

    @override
    def scalars(self, report: GradientFlowReport) -> dict[str, float]:
        """The values of a report by tag."""
        known = sorted(stats.rms for stats in report.modules.values() if math.isfinite(stats.rms))
        over_modules = (statistics.median(known), known[0], known[-1]) if known else (math.nan,) * 3
        return {
            **stat_scalars(self.prefix, self.modules.names, report.modules, MODULE_STATS),
            **stat_scalars(self.prefix, self.parameters.names, report.parameters, PARAMETER_STATS),
            **self._of_some(report),
            f"{self.prefix}/total_norm": report.total_norm,
            **{f"{self.prefix}/model/rms_{what}": value for what, value in zip(BAND, over_modules, strict=True)},
            **model_scalars(self.prefix, report.modules.values(), ["rms"]),
            **model_scalars(self.prefix, report.parameters.values(), ["norm", "update_ratio"]),
            **learning_scalars(report.learning, self._known.setdefault("learning", set())),
            **loss_scalars(report.loss),
        }

    def _of_some(self, report: GradientFlowReport) -> dict[str, float]:
        """Values that not every parameter and optimizer has: each from the first window in which it is measured."""
        lost = {name: stats for name, stats in report.parameters.items() if stats.lost_fraction is not None}
        scalars = stat_scalars(self.prefix, lost, lost, ["lost_fraction"])
        for name, copy in report.model_setup.copies.items():
            scalars[f"{self.prefix}/{name}/distance"] = copy.distance
        for name, stats in report.optimizers.items():
            scalars[f"{self.prefix}/{name}/lr"] = max(stats.lr, default=math.nan)
            known = self._known.setdefault(name, {"update_rms"})
            known.update(stat for stat in OPTIMIZER_STATS if getattr(stats, stat) is not None)
            scalars.update(
                stat_scalars(self.prefix, [name], report.optimizers, [stat for stat in OPTIMIZER_STATS if stat in known])
            )
        return scalars

    @override
    def not_logged_by_default(self) -> set[str]:
        """Of modules all but the RMS, of parameters all but the norm, and none of what each learns."""
        tags = {f"{self.prefix}/{name}/norm" for name in self.modules.names}
        tags |= {f"{self.prefix}/{name}/rms" for name in self.parameters.names}
        return tags | {f"learning/{name}/{stat}" for name in self.parameters.names for stat in LEARNING_PARAMETER_STATS}

    @classmethod
    @override
    def picture(cls, reports: Sequence[GradientFlowReport], stat: str | None) -> Callable[[], Figure] | None:
        return None if stat else partial(gradient_flow, reports[-1])

    @override
    def figures(self, reports: Sequence[GradientFlowReport], written: LoggedStatistics, last: bool) -> Figures:
        """Figures of the reports of a run so far."""
        now = reports[-1]
        figures: dict[str, Callable[[], Figure]] = {
            "gradient flow": partial(gradient_flow, now),
            "gradient flow of parameters": partial(gradient_flow, now, of="parameters"),
            "update ratios": partial(update_ratios, now),
        }
        for noun, stats, found in (("module", MODULE_STATS, now.modules), ("parameter", PARAMETER_STATS, now.parameters)):
            shown = [stat for stat in stats if stat in written.statistics and any(getattr(entry, stat) for entry in found.values())]
            for stat in shown if last or written.named else ["rms"][: noun == "module"]:
                figures[f"{stat} of {noun}s by epoch"] = partial(heatmap, reports, stat, of=noun)
        return figures

    @override
    def summary_lines(self, report: GradientFlowReport) -> list[str]:
        """What ``summary="full"`` prints of the last report."""
        total = len(report.modules) + len(report.silent)
        ranked = sorted(report.modules.items(), key=lambda item: (math.isnan(item[1].rms), item[1].rms))
        ends = ranked if len(ranked) <= 6 else ranked[:3] + ranked[-3:]
        columns = {"rms": "rms", "norm": "norm", "zeros": "zero_fraction", "NaN, inf": "nonfinite_fraction"}
        return [
            f"Gradient flow, epoch {report.epoch}: {len(report.modules)} of {total} modules and "
            f"{len(report.parameters)} parameters recorded, in {report.sampled_batches} of {report.batches} batches; "
            f"total norm {report.total_norm:.4g}.",
            *listed("No gradient at", report.silent),
            Table.of("module", columns, ends),
        ]


HEALTHY_UPDATES = (1e-4, 1e-2)  # ratios of update to weight around the 1e-3 that Karpathy (2022) aims at, a decade to each side


@style()
def gradient_flow(report: GradientFlowReport, *, of: Literal["modules", "parameters"] = "modules") -> Figure:
    """Draw how large the gradient is at each layer, on a log axis, with alerts marked.

    Drawn is the root mean square per element, comparable between layers of any size. A gradient that is zero, or has no finite
    value, is drawn at the bottom of the axis.

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
        unit = "gradient (loss per unit)"
        line = "RMS of the loss's gradient at each module's output; the loss is to the right"
        line += f"; no gradient arrived at {len(report.silent)} more" if report.silent else ""
    else:
        unit = "gradient (loss per unit of weight)"
        line = "RMS of each parameter's gradient at the optimizer step, before clipping"
    if not positive(rms).any():
        line = f"No gradient is finite and above zero at any of the {len(names)} {of}"
    figure, axes = layer_sheet(names, title, line)
    decades(axes, rms)
    handles = [*layer_dots(axes, names, rms, of[:-1]), *mark_the_rest(axes, rms, "gradient")]
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
    decade = axes.axhspan(*HEALTHY_UPDATES, color=GREEN, alpha=0.1, lw=0, label="a decade around 1e-3")
    axes.axhline(1e-3, color=GREEN, lw=1.0)
    handles = [*layer_dots(axes, names, values, "parameter"), decade]
    handles += mark_the_rest(axes, values, "update")
    handles += mark_affected(axes, names, values, report.alerts)
    axes.set_ylabel("update / weight, no unit")
    return with_names(figure, axes, names, "parameter", handles)
