"""How gradients are shown: tags, charts, figures, and the table in the terminal."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.gradients.figures import gradient_flow, update_ratios
from lightning_hooks.diagnostics.gradients.tables import GradientTable, ParameterTable
from lightning_hooks.diagnostics.learning.report import PARAMETER_STATS as LEARNING_PARAMETER_STATS
from lightning_hooks.diagnostics.learning.report import learning_scalars
from lightning_hooks.diagnostics.loss.report import loss_scalars
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.heat import heatmap
from lightning_hooks.statistics.rows import never_recorded
from lightning_hooks.trackers import Table, some
from lightning_hooks.trackers.tracker import Band, Chart, Layout, by_statistic, margins, of_model

RANKING = (
    *("rms", "update_ratio", "norm", "weight_norm", "nonfinite_fraction", "nonfinite_steps", "zero_fraction", "missing_steps"),
    *("norm_max", "update_ratio_max", "lost_fraction", "weight_rms"),
    *("std", "mean", "max", "min"),
)
"""The statistics of a site, what matters most first."""
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
    report_type: ClassVar[type[Report] | None] = GradientFlowReport
    ranking: ClassVar[tuple[str, ...]] = RANKING
    logged_by_default: ClassVar[tuple[str, ...] | None] = ("rms", "norm", "update_ratio", "weight_norm")
    histogram_of: ClassVar[str] = "gradient"
    modules: GradientTable
    parameters: ParameterTable

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        self._known: dict[str, set[str]] = {}  # of each optimizer, what was measured so far

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

    @override
    def charts(self, written: LoggedStatistics) -> Layout:
        """Charts of many curves: category to title to chart."""
        if not written.of_sites:
            band = Band(*(f"{self.prefix}/model/rms_{what}" for what in BAND))
            charts_of_model = of_model(self.prefix, ("norm", "update_ratio"))
            return {"Gradient flow": {"RMS of modules: median, smallest and largest": band, **charts_of_model}}
        modules, stats = self.modules.names, written.statistics
        of_modules, of_parameters = (stats, stats) if written.named else (("rms",), ("norm", "update_ratio", "weight_norm"))
        chosen = [stat for stat in MODULE_STATS if stat in of_modules], [stat for stat in PARAMETER_STATS if stat in of_parameters]
        charts: dict[str, Mapping[str, Chart]] = {
            "Gradient flow": {
                **by_statistic(self.prefix, chosen[0], modules, "modules"),
                **by_statistic(self.prefix, chosen[1], self.parameters.names, "parameters"),
            }
        }
        if {"mean", "min", "max"} <= {*stats}:
            charts["Gradient: mean, least and largest value"] = margins(self.prefix, modules)
        return charts

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
        lines = [
            f"Gradient flow, epoch {report.epoch}: {len(report.modules)} of {total} modules and "
            f"{len(report.parameters)} parameters recorded, in {report.sampled_batches} of {report.batches} batches; "
            f"total norm {report.total_norm:.4g}."
        ]
        if report.silent:
            lines.append(f"  No gradient at: {some(report.silent)}")
        ranked = sorted(report.modules.items(), key=lambda item: (math.isnan(item[1].rms), item[1].rms))
        ends = ranked if len(ranked) <= 6 else ranked[:3] + ranked[-3:]
        columns = {"rms": "rms", "norm": "norm", "zeros": "zero_fraction", "NaN, inf": "nonfinite_fraction"}
        return [*lines, Table.of("module", columns, ends)]
