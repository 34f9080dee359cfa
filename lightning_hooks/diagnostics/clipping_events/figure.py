"""The norms before and after clipping, as a figure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.panels import Curves, curve_figure
from lightning_hooks.plots.series import as_reports


def clip_history(reports: ClipReport | Sequence[ClipReport]) -> Figure:
    """Draw the total gradient norm before and after clipping over the epochs, and the share of steps that were clipped.

    Lines are means over an epoch's steps, bands reach to its largest step. Each optimizer has a column of its own.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not ClipReports.
        ValueError: If there is none.
    """
    ordered = as_reports(reports, ClipReport, "GradientClipMonitor")
    names = dict.fromkeys(name for report in ordered for name in report.optimizers)
    panels = [_curves(name, [report.optimizers.get(name) for report in ordered]) for name in names]
    return curve_figure(
        "Gradient clipping", ordered, panels, axis="total gradient norm (L2)", unmeasured="no finite norm", whole="steps",
        missing="There was no optimizer.",
    )  # fmt: skip


def _curves(optimizer: str, rows: Sequence[ClipStats | None]) -> Curves:
    def numbers(stat: str) -> np.ndarray:
        return np.array([np.nan if row is None else getattr(row, stat) for row in rows], dtype=float)

    steps, clipped, skipped = (numbers(stat) for stat in ("steps", "clipped_steps", "skipped_steps"))
    attempted, taken = np.maximum(np.nan_to_num(steps + skipped), 1), int(np.nansum(steps))
    happened = {"clipped": clipped, "skipped": skipped, "non-finite": numbers("nonfinite_steps")}
    return Curves(
        optimizer,
        f"{np.nansum(clipped) / taken:.0%} of {taken} steps clipped" if taken else "no step was taken",
        {f"{when} clipping": (numbers(f"norm_{when}"), numbers(f"norm_{when}_max")) for when in ("before", "after")},
        numbers("limit"),
        {what: np.nan_to_num(counts) / attempted for what, counts in happened.items()},
    )
