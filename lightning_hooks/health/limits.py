"""What the sections share: how much is drawn, and which layers are ill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.health.html import Markup, tag
from lightning_hooks.health.parts import name
from lightning_hooks.health.run import Recorded, Run
from lightning_hooks.health.verdict import GRAVITY


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a large run is drawn, so that the page stays small.

    Attributes:
        rows: Layers in a list.
        heat_rows: Layers in a heat map.
        heat_columns: Epochs in a heat map.
        alerts: Lines in the list of alerts.
    """

    rows: int = 300
    heat_rows: int = 400
    heat_columns: int = 300
    alerts: int = 150

    def halved(self) -> Limits:
        """Half as much of everything."""
        return Limits(self.rows // 2, self.heat_rows // 2, self.heat_columns // 2, self.alerts // 2)


def severities(recorded: Recorded) -> dict[str, str]:
    """The gravest severity of each site's alerts in the last epoch; a parameter's counts for its module too."""
    found: dict[str, str] = {}
    alerts = recorded.alerts[recorded.epochs[-1]] if recorded.epochs else ()
    for alert in sorted(alerts, key=lambda alert: -GRAVITY.get(alert.severity, 3)):
        found[alert.site.rpartition(".")[0]] = alert.severity
    for alert in sorted(alerts, key=lambda alert: -GRAVITY.get(alert.severity, 3)):
        found[alert.site] = alert.severity
    return found


def listed(names: Sequence[str], most: int = 8) -> list[Any]:
    """Names one after the other, those beyond ``most`` counted."""
    shown: list[Any] = []
    for text in names[:most]:
        shown += [", " if shown else "", name(text)]
    return [*shown, f" and {len(names) - most} more"] if len(names) > most else shown


def whose(run: Run, recorded: Recorded) -> Markup | None:
    """Which of several monitors of a kind this is."""
    return tag("h3", name(recorded.modules)) if len(run.of(recorded.prefix)) > 1 else None


def left_out(shown: int, total: int, what: str) -> Markup | None:
    """A line that says what is not drawn; None if all is."""
    if shown == total:
        return None
    return tag("p", f"{shown} of {total} {what} are drawn: those with an alert, and every so many of the others.", class_="soft")
