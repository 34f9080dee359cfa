"""What every monitor reports of a window."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import PlainReport


@dataclass(frozen=True, slots=True, repr=False)
class Report(PlainReport):
    """What a monitor reports, once per window.

    Attributes:
        epoch: The epoch, from 0.
        step: The trainer's ``global_step`` at the end of the window.
        alerts: What the rules found, root causes first.
        overhead: What the monitor added to the training batches, as a share of their time without it (0.01 is 1 %), on this rank;
            None where it is not known.
        every_n_steps: The sampling in force at the end of the window.
        window: The window of the epoch, from 0, where windows are shorter than epochs; None for the report of a whole epoch.
    """

    subject: ClassVar[str] = "Output"
    """What its statistics are of, in titles."""

    epoch: int
    step: int
    _: KW_ONLY
    alerts: tuple[Alert, ...] = ()
    overhead: float | None = field(default=None, compare=False, repr=False)
    every_n_steps: int = 1
    window: int | None = None
