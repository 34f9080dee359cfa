"""The alert: which site is ill, of what, since when, and what to try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Severity = Literal["info", "warning", "critical"]

FEATURE_KINDS = ("dead", "saturated", "constant", "nonfinite", "silent")
GRADIENT_KINDS = ("vanishing", "exploding", "nonfinite", "zero", "missing")
CLIP_KINDS = ("always_clipped", "clip_ineffective", "steps_skipped")

ALERT_KINDS: tuple[str, ...] = tuple(dict.fromkeys(FEATURE_KINDS + GRADIENT_KINDS + CLIP_KINDS))
"""Every kind that the built-in rules raise."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One finding of a rule.

    Attributes:
        kind: What is wrong, one of ``ALERT_KINDS`` or a kind of the user's own rule.
        site: Where: the name of a module, a parameter or an optimizer.
        value: What was measured.
        threshold: What it was held against.
        epoch: The epoch whose report showed it.
        step: The global step at the end of that epoch.
        severity: ``info`` (worth knowing), ``warning`` (training is likely hurt) or ``critical`` (training is lost unless
            something changes).
        message: What was seen, the likely cause, and what to try.
    """

    kind: str
    site: str
    value: float
    threshold: float
    epoch: int
    step: int
    severity: Severity
    message: str

    def __str__(self) -> str:
        return f"[{self.severity}] {self.kind} at {self.site}: {self.message}"


class AlertError(RuntimeError):
    """Raised at an epoch's end by ``on_alert="raise"``.

    Attributes:
        alerts: What made it raise.
    """

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self.alerts = tuple(alerts)
        super().__init__("\n".join(str(alert) for alert in self.alerts))
