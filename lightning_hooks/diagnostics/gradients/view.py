"""How gradients are shown: tags, charts, figures, and the table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.gradients.tables import GradientTable, ParameterTable
from lightning_hooks.diagnostics.learning.report import learning_scalars
from lightning_hooks.diagnostics.loss.report import loss_scalars
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.plots.canvas import GREEN, Figure, decades, nothing, positive, style
from lightning_hooks.plots.curves import layer_dots, layer_sheet, mark_affected, mark_the_rest, numbers_of, with_names
from lightning_hooks.plots.heat import heatmap
from lightning_hooks.plots.series import check_report
from lightning_hooks.statistics.rows import never_recorded

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
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "modules": {"rms": "rms", "norm": "norm", "zeros": "zero_fraction", "NaN, inf": "nonfinite_fraction"},
    }
    modules: GradientTable
    parameters: ParameterTable
    _known: dict[str, set[str]]  # what was measured so far: tags of learning, and optimizers with second moments

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
        return {
            **stat_scalars(self.prefix, self.modules.names, report.modules, MODULE_STATS),
            **stat_scalars(self.prefix, self.parameters.names, report.parameters, PARAMETER_STATS),
            **self._of_some(report),
            f"{self.prefix}/total_norm": report.total_norm,
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
        known = self._known.setdefault("optimizers", set())
        for name, stats in report.optimizers.items():
            scalars[f"{self.prefix}/{name}/lr"] = max(stats.lr, default=math.nan)
            if stats.stale_fraction is not None:
                known.add(name)
            if name in known:
                scalars |= stat_scalars(self.prefix, [name], report.optimizers, ["stale_fraction"])
        return scalars

    @override
    def not_logged_by_default(self) -> set[str]:
        """Of modules all but the RMS, of parameters all but the norm."""
        tags = {f"{self.prefix}/{name}/norm" for name in self.modules.names}
        return tags | {f"{self.prefix}/{name}/rms" for name in self.parameters.names}

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
            "update ratios": partial(update_ratios, now),
        }
        for noun, stats, found in (("module", MODULE_STATS, now.modules), ("parameter", PARAMETER_STATS, now.parameters)):
            shown = [stat for stat in stats if stat in written.statistics and any(getattr(entry, stat) for entry in found.values())]
            for stat in shown if last or written.named else ["rms"][: noun == "module"]:
                figures[f"{stat} of {noun}s by epoch"] = partial(heatmap, reports, stat, of=noun)
        return figures


HEALTHY_UPDATES = (1e-4, 1e-2)  # ratios of update to weight around the 1e-3 that Karpathy (2022) aims at, a decade to each side


@style()
def gradient_flow(report: GradientFlowReport) -> Figure:
    """Draw how large the gradient is at each layer, on a log axis, with alerts marked.

    Drawn is the root mean square per element, comparable between layers of any size. A gradient that is zero, or has no finite
    value, is drawn at the bottom of the axis.

    Args:
        report: One window's.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``report`` is not a GradientFlowReport.
    """
    check_report(report, GradientFlowReport, "GradientFlowMonitor")
    title, names = f"Gradient flow, {report.when}", list(report.modules)
    if not names:
        return nothing(title, "No gradient arrived at any of the modules.")
    rms = numbers_of(report.modules, "rms")
    line = "RMS of the loss's gradient at each module's output; the loss is to the right"
    line += f"; no gradient arrived at {len(report.silent)} more" if report.silent else ""
    if not positive(rms).any():
        line = f"No gradient is finite and above zero at any of the {len(names)} modules"
    figure, axes = layer_sheet(names, title, line)
    decades(axes, rms)
    handles = [
        *layer_dots(axes, names, rms, "module"),
        *mark_the_rest(axes, rms, "gradient"),
        *mark_affected(axes, names, rms, report.alerts),
    ]
    axes.set_ylabel("gradient (loss per unit)")
    return with_names(figure, axes, names, "module", handles)


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
    handles = [
        *layer_dots(axes, names, values, "parameter"),
        decade,
        *mark_the_rest(axes, values, "update"),
        *mark_affected(axes, names, values, report.alerts),
    ]
    axes.set_ylabel("update / weight, no unit")
    return with_names(figure, axes, names, "parameter", handles)
