"""What is printed when a fit ends: three lines for all members together."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from lightning_hooks.alerts import Alert
from lightning_hooks.session.member import Member
from lightning_hooks.trackers import coloured, show

ORDER = {"critical": 0, "warning": 1}


def open_alerts(members: Sequence[Member]) -> list[Alert]:
    """The problems that last, one alert each, as first passed on, the most severe first."""
    lasting = [alert for member in members for alert in member.alerting.window.open if alert.severity in ORDER]
    return sorted(lasting, key=lambda alert: ORDER[alert.severity])


def closing_lines(headline: str, alerts: Sequence[Alert], place: str = "", width: int | None = None) -> list[str]:
    """The verdict, the open alerts in one line, and where the report is.

    Args:
        headline: The verdict in a sentence.
        alerts: The open alerts, the most severe first.
        place: Of the health report; empty for none.
        width: Of the terminal, which the line of alerts keeps; None to ask it.
    """
    width = shutil.get_terminal_size((80, 24)).columns if width is None else width
    severity = alerts[0].severity if alerts else ""
    lines = [coloured(f"Monitors: {headline}", severity, sys.stdout), f"Open alerts: {_listed(alerts, width - 13)}"]
    return [*lines, f"Health report: {place}"] if place else lines


def headline_of(alerts: Sequence[Alert]) -> str:
    """A verdict of the last reports alone, where no run is recorded."""
    if not alerts:
        return "Nothing was found wrong."
    more = f"; {len(alerts) - 1} more alert{'s' * (len(alerts) > 2)}" if len(alerts) > 1 else ""
    return f"{alerts[0].title} at {alerts[0].site}{more}."


def print_closing(members: Sequence[Member], headline: str = "", place: str = "") -> bool:
    """Print the closing lines of some members if any has a report and ``summary`` on; whether they were printed.

    Args:
        members: All that end together.
        headline: The verdict; empty to take it from their last reports.
        place: Of the health report; empty for none.
    """
    if not any(member.settings.summary for member in members) or not (headline or any(member.report for member in members)):
        return False
    alerts = open_alerts(members)
    show(["", *closing_lines(headline or headline_of(alerts), alerts, place)])
    return True


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
