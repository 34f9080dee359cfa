"""What the progress bar shows."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from lightning_hooks.diagnostics.reports import ClipReport


def in_short(reports: Iterable[Any]) -> dict[str, Any]:
    """How many alerts there are, and the share of clipped steps."""
    known = [report for report in reports if report is not None]
    alerts = {(alert.kind, alert.site) for report in known for alert in getattr(report, "alerts", ()) if alert.severity != "info"}
    clips = [stats for report in known if isinstance(report, ClipReport) for stats in report.optimizers.values()]
    rates = [stats.rate for stats in clips if not math.isnan(stats.rate)]
    return {"alerts": _Count(len(alerts)), **({"clip_rate": max(rates)} if rates else {})}


class _Count(int):
    """A whole number that stays one in a progress bar, whichever format the bar has for numbers."""

    def __format__(self, form: str) -> str:
        return str(int(self))
