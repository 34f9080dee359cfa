"""A report in a few lines: what a prompt, a debugger or a notebook shows of it."""

from __future__ import annotations

import difflib
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_hooks.declare.kinds import gravity

TABLES = {
    "sites": "module",
    "modules": "module",
    "parameters": "parameter",
    "optimizers": "optimizer",
    "routers": "router",
    "codebooks": "codebook",
    "metrics": "metric",
}
"""The tables of reports, and what their rows are."""
SHOWN = (
    *("dead_fraction", "saturated_fraction", "nonfinite_fraction", "norm", "rms", "std", "rate", "norm_before", "scale", "value"),
    *("update_rms", "instability", "balance", "max_load", "entropy", "max_logit", "first_token_share", "perplexity", "usage"),
)
"""What is shown of a site: the first three of these that it has."""


def brief(report: Any) -> list[str]:
    """At most six lines: the window, how much was measured, three sites, those with alerts first, the alerts."""
    tables = found_tables(report)
    counts = ", ".join(f"{len(table)} {name if len(table) != 1 else name[:-1]}" for name, table in tables.items())
    silent = len(getattr(report, "silent", ()))
    batches = getattr(report, "batches", 0)
    sampled = f"; {report.sampled_batches} of {batches} batches sampled" if batches else ""
    lines = [f"{type(report).__name__}: epoch {report.epoch}, step {report.step}"]
    lines.append(f"  {counts or 'nothing'} measured" + (f", {silent} silent" if silent else "") + sampled)
    lines += [f"  {site}: {_described(stats)}" for site, stats in _worst(report, tables)]
    return [*lines, f"  alerts: {_alerts(report)}"]


def lines_html(lines: Sequence[str]) -> str:
    """Lines for a notebook, the first one bold."""
    first, *rest = map(html.escape, lines)
    return f"<pre>{chr(10).join([f'<b>{first}</b>', *rest])}</pre>"


def find(report: Any, name: str) -> Any:
    """What a report holds under a name, whichever of its tables that is in.

    Raises:
        KeyError: If it holds none of that name; with the closest names.
    """
    tables = found_tables(report)
    for table in tables.values():
        if name in table:
            return table[name]
    known = [known for table in tables.values() for known in table]
    near = difflib.get_close_matches(str(name), known, 3, 0.3) or known[:3]
    closest = f"; the closest are {', '.join(map(repr, near))}" if near else ", which is empty"
    raise KeyError(f"{name!r} is not in this {type(report).__name__}{closest}.")


def found_tables(report: Any) -> dict[str, Mapping[str, Any]]:
    """The tables of a report by name, those that hold something."""
    return {name: table for name in TABLES if (table := getattr(report, name, None))}


def _worst(report: Any, tables: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """Three sites: those with the most severe alerts, then the first ones."""
    grave: dict[str, int] = {}
    for alert in getattr(report, "alerts", ()):
        grave[alert.site] = min(grave.get(alert.site, 3), gravity(alert.severity))
    found = [entry for table in tables.values() for entry in table.items()]
    return sorted(found, key=lambda entry: grave.get(entry[0], 3))[:3]


def _described(stats: Any) -> str:
    parts = []
    for field in SHOWN:
        value = getattr(stats, field, None)
        if value is None or (field.endswith("_fraction") and not value):
            continue
        share = field.endswith("_fraction") or field == "rate"
        parts.append(f"{field.removesuffix('_fraction')} {f'{value:.0%}' if share else f'{value:.3g}'}")
    return ", ".join(parts[:3]) or "nothing measured"


def _alerts(report: Any) -> str:
    alerts = sorted(getattr(report, "alerts", ()), key=lambda alert: gravity(alert.severity))
    if not alerts:
        return "none"
    counts = Counter(alert.severity for alert in alerts)
    counted = ", ".join(f"{count} {severity}" for severity, count in counts.items())
    return f"{counted} ({alerts[0].name}{', …' if len(alerts) > 1 else ''})"
