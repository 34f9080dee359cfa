"""What is reported of clipping in a window, and drawn of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from typing_extensions import override

from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.clipping.watch import StepEvents
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import STEP
from lightning_hooks.declare.window import Moment, Report
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.curves import Curves, curve_figure
from lightning_hooks.plots.series import as_reports


@dataclass(frozen=True, slots=True, repr=False)
class ClipReport(Report):
    """What clipping did in one window.

    Attributes:
        optimizers: Optimizer name (``0-Adam``) to what happened at its steps.
        events: Optimizer name to what happened at single steps of it.
    """

    subject: ClassVar[str] = "Clipping"

    optimizers: dict[str, ClipStats]
    events: dict[str, StepEvents] = field(default_factory=dict)

    def first_norm(self, optimizer: str) -> float:
        """The larger mean norm before clipping of training's first two windows; NaN where they are not over."""
        norms = [report.optimizers[optimizer].norm_before for report in self.earlier if optimizer in report.optimizers]
        return max(norms[:2]) if len(norms) > 1 else math.nan

    @override
    def moment_of(self, alert: Alert) -> Moment:
        # An optimizer is no layer: a site that is sampled later is more precise, and is reported with this batch.
        return STEP, math.inf if alert.site in self.events else None, 1


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
