"""What clipping did in one window, and what happened at single steps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.clipping.watch import StepEvents
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.report import Moment, Report, batch_of
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

    @override
    def moment_of(self, alert: Alert) -> Moment:
        # An optimizer is no layer: a site that is sampled later is more precise, and is reported with this batch.
        return Moment(batch=math.inf if alert.site in self.events else None)

    @property
    @override
    def first_bad_batch(self) -> float:
        return min(map(batch_of, self.events.values()), default=math.inf)
