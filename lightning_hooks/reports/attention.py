"""What AttentionMonitor reports, once per window."""

from __future__ import annotations

from dataclasses import dataclass, field

from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.plain import PlainReport
from lightning_hooks.statistics.attention_stats import AttentionStats


@dataclass(frozen=True, slots=True, repr=False)
class AttentionReport(PlainReport):
    """Attention of one window.

    Attributes:
        sites: Site (``blocks.3.attn/sdpa``, ``blocks.3.attn/softmax``) to its statistics, in the order of their first call; only
            sites that were called.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
    """

    epoch: int
    step: int
    sites: dict[str, AttentionStats]
    sampled_batches: int = 0
    batches: int = 0
    alerts: tuple[Alert, ...] = ()
    overhead: float | None = field(default=None, compare=False, repr=False)
    every_n_steps: int = 1
    window: int | None = None
