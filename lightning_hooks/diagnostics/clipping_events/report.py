"""What is reported of the optimizer steps of a window, and which of them had the largest gradient norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.clipping import ClipLedger
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.clipping.watch import LARGEST, N_STEP_NUMBERS, StepEvents, largest_steps
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import STEP
from lightning_hooks.declare.window import Moment, Report
from lightning_hooks.diagnostics.unusual import Found, UnusualBatch
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.panels import Curves, curve_figure
from lightning_hooks.plots.series import as_reports
from lightning_hooks.statistics.reduction import Span, Spans, by_columns, of_largest, paired


@dataclass(frozen=True, slots=True, repr=False)
class ClipReport(Report):
    """What clipping did in one window.

    Attributes:
        optimizers: Optimizer name (``0-Adam``) to what happened at its steps.
        events: Optimizer name to what happened at single steps of it.
        largest_norms: Optimizer name to the batches of the run so far that ended its steps with the five largest finite gradient
            norms before clipping, the largest first.
    """

    subject: ClassVar[str] = "Clipping"

    optimizers: dict[str, ClipStats]
    events: dict[str, StepEvents] = field(default_factory=dict)
    largest_norms: dict[str, tuple[UnusualBatch, ...]] = field(default_factory=dict)

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


WIDTH = LARGEST * N_STEP_NUMBERS
"""The numbers of an optimizer."""


class LargestSteps:
    """The largest steps of each optimizer.

    Args:
        ledgers: Returns the ledgers of the optimizers.
        device: Where the table lives.
    """

    def __init__(self, ledgers: Callable[[], Sequence[ClipLedger]], device: torch.device | str) -> None:
        self._ledgers, self._device = ledgers, device

    @property
    def spans(self) -> Spans:
        """How packed tables merge: the steps of the rank with the largest norm, and the largest of all windows."""
        of_ranks = by_columns([(of_largest, range(WIDTH))], WIDTH)  # ranks that have it took the same steps
        return (Span(WIDTH * len(self._ledgers()), of_ranks, paired(_of_both)),)

    def pack(self) -> Tensor:
        """Return the window's numbers as one vector."""
        rows = [ledger.largest.flatten() for ledger in self._ledgers()]
        return torch.cat(rows) if rows else torch.empty(0, device=self._device)

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        for ledger, rows in zip(self._ledgers(), packed.view(-1, LARGEST, N_STEP_NUMBERS), strict=True):
            ledger.watch.largest = rows.to(ledger.watch.largest, copy=True)

    def reset(self) -> None:
        """Start a new window; the ledgers do."""


def found_in(packed: Tensor) -> list[list[Found]]:
    """The largest steps of each optimizer, of packed numbers on the host."""
    rows = packed.view(-1, LARGEST, N_STEP_NUMBERS).tolist()
    return [[(norm, int(batch), int(step)) for norm, batch, step in steps if norm >= 0] for steps in rows]


def _of_both(earlier: Tensor, later: Tensor) -> Tensor:
    """The largest steps of two windows."""
    both = torch.cat((earlier.view(-1, LARGEST, N_STEP_NUMBERS), later.view(-1, LARGEST, N_STEP_NUMBERS)), 1)
    return torch.cat([largest_steps(rows).flatten() for rows in both]) if len(both) else earlier
