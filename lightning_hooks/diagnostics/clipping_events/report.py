"""What clipping did in one window, and what happened at single steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.clipping.watch import StepEvents
from lightning_hooks.declare.report import Report
from lightning_hooks.diagnostics.unusual import UnusualBatch


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
