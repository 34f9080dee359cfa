"""How much of a large run is drawn, and which of its layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.declare.kinds import gravity
from lightning_hooks.run_report.run import MonitorRecord


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of a large run is drawn, so that the page stays small."""

    rows: int = 300  # layers in a list
    heat_rows: int = 400  # layers in a heat map
    heat_columns: int = 300  # epochs in a heat map
    alerts: int = 150  # lines in the list of alerts

    def halved(self) -> Limits:
        """Half as much of everything."""
        return Limits(self.rows // 2, self.heat_rows // 2, self.heat_columns // 2, self.alerts // 2)


def severities(record: MonitorRecord) -> dict[str, str]:
    """The highest severity of each site's alerts in the last epoch; a parameter's counts for its module too."""
    found: dict[str, str] = {}
    alerts = record.alerts[record.epochs[-1]] if record.epochs else ()
    for alert in sorted(alerts, key=lambda alert: -gravity(alert.severity)):
        found[alert.site.rpartition(".")[0]] = alert.severity
    for alert in sorted(alerts, key=lambda alert: -gravity(alert.severity)):
        found[alert.site] = alert.severity
    return found


def chosen(names: Sequence[str], severities: Mapping[str, str], most: int) -> list[str]:
    """Which of too many names are drawn: all that have an alert, as far as there is room, and every k-th of the others."""
    if len(names) <= most:
        return list(names)
    affected = [name for name in names if severities.get(name) in ("critical", "warning")][:most]
    others = [name for name in names if name not in set(affected)]
    room = max(most - len(affected), most // 4)
    kept = {*affected, *others[:: max(1, -(-len(others) // room))]}
    return [name for name in names if name in kept]


def worst(table: Mapping[str, Any], key: Callable[[Any], float], severities: Mapping[str, str], most: int) -> dict[str, Any]:
    """Which rows of a table Markdown has, in the model's order: of too many those with an alert, then the smallest by ``key``."""
    if len(table) <= most:
        return dict(table)

    def rank(site: str) -> tuple[int, float]:
        value = key(table[site])
        return gravity(severities.get(site, "")), value if math.isfinite(value) else -math.inf

    kept = set(sorted(table, key=rank)[:most])
    return {site: stats for site, stats in table.items() if site in kept}
