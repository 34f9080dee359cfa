"""What the routers of a mixture of experts and the quantisers with a codebook chose, once per window."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import PlainReport
from lightning_hooks.diagnostics.routers.routing import CodebookStats, RouterStats


@dataclass(frozen=True, slots=True, repr=False)
class RouterReport(PlainReport):
    """Routers and codebooks of one window.

    Attributes:
        routers: Name of each router that ran to what it chose, in model order.
        codebooks: Name of each quantiser that ran to the codes it chose, in model order.
        silent: Routers and quantisers that never ran in a sampled batch, on any rank, or put out neither logits nor choices.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
    """

    epoch: int
    step: int
    routers: dict[str, RouterStats]
    codebooks: dict[str, CodebookStats] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    sampled_batches: int = 0
    batches: int = 0
    alerts: tuple[Alert, ...] = ()
    overhead: float | None = field(default=None, compare=False, repr=False)
    every_n_steps: int = 1
    window: int | None = None
