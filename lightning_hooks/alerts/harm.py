"""Harm before alarm: a warning about a symptom is an info where the training goes well, and where its kind is often wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.records import PRECISE
from lightning_hooks.declare.rule import Excuse, lowered
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.learning.effect import Effects
from lightning_hooks.diagnostics.loss.report import falls
from lightning_hooks.diagnostics.reports import GradientFlowReport


def _harmless(_: Any, alert: Alert, effects: Effects | None) -> str:
    effect = None if effects is None else effects.at(alert.site)
    return "" if effect is None else effect.harmless


def _often_wrong(_: Any, alert: Alert, __: Any) -> str:
    record = alert.evidence
    if record is None or record.precision is None or record.precision >= PRECISE:
        return ""
    return f"on trainings that nothing was tuned on {record.precision:.0%} of such alerts were right"


SOFT = (
    Excuse(
        "solved", "the loss is next to nothing of that of the best constant answer",
        lambda _, __, effects: "" if effects is None else effects.solved,
    ),
    Excuse("harmless", "the weights there bring their share of the fall of the loss", _harmless),
    Excuse(
        "often_wrong", f"on trainings that nothing was tuned on less than {PRECISE:.0%} of such alerts were right", _often_wrong,
    ),
)  # fmt: skip
"""Those of all soft rules, applied to the alerts of all monitors together."""

WHOLE = 0.999
"""A share from which on it is all."""
GOES_WELL = 0.9
"""The last losses over those at the start, below which the loss falls."""
ALONE = Excuse(
    "alone", "it is a part only, nothing that is known causes it, and the loss falls",
    lambda _, alert, flow: not (_whole(alert) or any(cause.decisive for cause in alert.causes))
    and flow is not None and falls(flow.loss, GOES_WELL),
)  # fmt: skip
"""That of soft rules, once causes are known."""


def _whole(alert: Alert) -> bool:
    return kind_of(alert.kind).measures == "share" and alert.value >= WHOLE


def weighed(window: Window, soft: Sequence[Container[str]]) -> Window:
    """Lower the warnings of soft rules that have an excuse; those that are left say what they do to learning.

    ``soft`` holds, for the report of each monitor, the names of alerts that may do no harm.
    """
    flow = window.report(GradientFlowReport)
    effects = None if flow is None else Effects(flow, window.places)

    def left(alert: Alert) -> Alert:
        for excuse in SOFT:
            why = excuse.holds(None, alert, effects)
            if why:
                return lowered(alert, excuse, why)
        effect = None if effects is None else effects.at(alert.site)
        brings = "Its effect on learning is not measured." if effect is None else f"{effect.shares}."
        return dataclasses.replace(alert, diagnosis=f"{alert.diagnosis} {brings}".strip())

    return window.with_alerts(
        tuple(left(alert) if alert.severity == "warning" and alert.name in names else alert for alert in report.alerts)
        for report, names in zip(window.reports, soft, strict=True)
    )


def alone(alert: Alert, flow: GradientFlowReport | None) -> Alert:
    """Lower the warning of a soft rule that has its causes by now, if :data:`ALONE` holds."""
    return lowered(alert, ALONE) if alert.severity == "warning" and ALONE.holds(None, alert, flow) else alert
