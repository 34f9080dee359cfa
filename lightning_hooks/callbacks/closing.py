"""What is printed when a fit ends: three lines for all monitors together."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from lightning_hooks.alerts import Alert
from lightning_hooks.trackers import coloured, show

Summary = bool | Literal["full"]
ORDER = {"critical": 0, "warning": 1}


def checked_summary(summary: Any) -> Summary:
    """Return what ``summary=`` says.

    Raises:
        TypeError: If it is neither True, False nor ``full``.
    """
    if summary is True or summary is False or summary == "full":
        return summary  # type: ignore[no-any-return]
    raise TypeError(f"summary must be True (three lines at the end), 'full' (with tables) or False; got {summary!r}.")


def open_alerts(reports: Iterable[Any]) -> list[Alert]:
    """The root causes above info of the last reports, the gravest first."""
    found = [alert for report in reports for alert in getattr(report, "alerts", ()) if alert.severity in ORDER and not alert.cause]
    return sorted(found, key=lambda alert: ORDER[alert.severity])


def closing_lines(headline: str, alerts: Sequence[Alert], place: str = "", width: int | None = None) -> list[str]:
    """The verdict, the open alerts in one line, and where the report is.

    Args:
        headline: The verdict in a sentence.
        alerts: The open alerts, the gravest first.
        place: Of the health report; empty for none.
        width: Of the terminal, which the line of alerts keeps; None to ask it.
    """
    width = shutil.get_terminal_size((80, 24)).columns if width is None else width
    grave = alerts[0].severity if alerts else ""
    lines = [coloured(f"Monitors: {headline}", grave, sys.stdout), f"Open alerts: {_listed(alerts, width - 13)}"]
    return [*lines, f"Health report: {place}"] if place else lines


def headline_of(alerts: Sequence[Alert]) -> str:
    """A verdict of the last reports alone, where no run is recorded."""
    if not alerts:
        return "Nothing was found wrong."
    more = f"; {len(alerts) - 1} more alert{'s' * (len(alerts) > 2)}" if len(alerts) > 1 else ""
    return f"{alerts[0].title} at {alerts[0].site}{more}."


def conclude_in_print(monitors: Sequence[Any], headline: str = "", place: str = "") -> bool:
    """Print the closing lines of some monitors if any has a report and ``summary`` on; whether they were printed.

    Args:
        monitors: All that end together.
        headline: The verdict; empty to take it from their last reports.
        place: Of the health report; empty for none.
    """
    reports = [monitor.report for monitor in monitors if monitor.report is not None]
    if not any(getattr(monitor, "summary", False) for monitor in monitors) or not (reports or headline):
        return False
    alerts = sorted((alert for monitor in monitors for alert in _open(monitor)), key=lambda alert: ORDER[alert.severity])
    show(["", *closing_lines(headline or headline_of(alerts), alerts, place)])
    return True


def _open(monitor: Any) -> list[Alert]:
    """The problems that last: of a monitor that follows them one each, as first passed on; else what its last report has."""
    alerting = getattr(monitor, "alerting", None)
    if alerting is None:
        return open_alerts([monitor.report])
    return [alert for alert in alerting.window.open if alert.severity in ORDER]


def _listed(alerts: Sequence[Alert], room: int) -> str:
    """``[critical] dead at a, [warning] zero at b and 3 more``: as many as there is room for, one at least."""
    if not alerts:
        return "none"
    text = ""
    for count, alert in enumerate(alerts):
        longer = f"{text}{', ' * bool(text)}[{alert.severity}] {alert.name}"
        rest = len(alerts) - count - 1
        if text and len(longer) + (len(f" and {rest} more") if rest else 0) > room:
            return f"{text} and {len(alerts) - count} more"
        text = longer
    return text
