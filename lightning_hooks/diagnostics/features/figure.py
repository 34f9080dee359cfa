"""The dead units of rectifiers, as a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.heat import ShareFigure, heatmap, share_figure
from lightning_hooks.plots.series import as_reports

DEAD_UNITS = ShareFigure(
    "Dead units of rectifiers", "dead_fraction", "dead", "rectifier", "dead units",
    "No rectifier (nn.ReLU, nn.ReLU6) was observed.",
)  # fmt: skip


def dead_units(reports: FeatureReport | Sequence[FeatureReport]) -> Figure:
    """Draw the share of dead units of each rectifier: over the epochs, and in the last one.

    A unit is dead in an epoch if it gave zero for every sampled input. The line is the share above which the default rule alerts.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not FeatureReports.
        ValueError: If there is none.
    """
    return share_figure(as_reports(reports, FeatureReport, "FeatureStatsMonitor"), DEAD_UNITS)


def default_figure(reports: Sequence[FeatureReport]) -> Callable[[], Figure]:
    """The dead units of rectifiers, or, where there is no rectifier, the spread of every module's output."""
    known = any(getattr(stats, DEAD_UNITS.stat) is not None for report in reports for stats in report.sites.values())
    return partial(dead_units, reports) if known else partial(heatmap, reports, "std")
