"""Notifications: their texts, and how each service takes them. What comes from a run is text there, never markup or a mention."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import inside_a_sentence
from lightning_hooks.trackers.console import visible

VERSION = 1
"""Of plain JSON messages."""
LONGEST = 1500
"""Characters of a message; Discord takes 2000."""
PRIORITIES = {"critical": "urgent", "warning": "high"}
Body = tuple[bytes, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Message:
    """A notification."""

    event: str  # alert, or the run's end: finished, stopped, interrupted or crashed
    kind: str  # of the alert; that of the end for the end
    severity: str  # critical, warning or info
    run: str
    headline: str  # it in a sentence
    site: str = ""  # where; empty for the run
    epoch: int = 0
    step: int = 0
    cause: str = ""  # what was measured, and the likely cause
    remedy: tuple[str, ...] = ()  # what to try
    more: int = 0  # alerts of this kind that were not sent, since one was less than a minute before

    @property
    def lines(self) -> list[str]:
        """It as plain text."""
        lines = [f"[{self.severity}] {self.headline}", f"{self.run}: epoch {self.epoch}, step {self.step}"]
        steps = [inside_a_sentence(step.removeprefix("Try ")) for step in self.remedy]  # the line's label says it
        lines += [self.cause] * bool(self.cause) + [f"try: {'; '.join(steps)}."] * bool(steps)
        lines += [f"{self.more} more of this kind in the last minute"] * bool(self.more)
        return [visible(" ".join(line.split())) for line in lines]

    @property
    def text(self) -> str:
        """The lines, cut where they are too long."""
        text = "\n".join(self.lines)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def of_alert(alert: Alert, run: str) -> Message:
    """The notification of a new root alert."""
    headline = f"{alert.title} at {alert.where}"
    cause = " ".join((alert.seen, alert.follows)).strip()
    step = alert.step if alert.since_step is None else alert.since_step
    return Message("alert", alert.kind, alert.severity, run, headline, alert.site, alert.epoch, step, cause, alert.advice)


def of_end(end: Mapping[str, Any], headline: str, run: str) -> Message:
    """The notification of a run's end: the ``end`` event of its file, and the headline of its verdict."""
    by_alert = "stopped_by" in end or end.get("error_type") == "AlertError"
    event = "stopped" if by_alert else {"exception": "crashed"}.get(str(end["how"]), str(end["how"]))
    severity = {"crashed": "critical", "stopped": "warning"}.get(event, "info")
    return Message(event, "end", severity, run, f"Training {event}. {headline}", "", int(end["epoch"]), int(end["step"]))


def _json(value: Any) -> Body:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def _plain(message: Message) -> Body:
    return _json({"version": VERSION, **asdict(message), "text": message.text})


def _slack(message: Message) -> Body:
    text = message.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")  # these three make links and mentions
    return _json({"text": text, "mrkdwn": False})


def _discord(message: Message) -> Body:
    text = re.sub(r"([\\`*_~|<>\[\]()#:-])", r"\\\1", message.text)
    return _json({"content": text[:2000], "allowed_mentions": {"parse": []}})


def _teams(message: Message) -> Body:
    lines = message.text.split("\n")
    runs = [{"type": "TextRun", "text": line, "weight": "Default" if number else "Bolder"} for number, line in enumerate(lines)]
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.2",
        "body": [{"type": "RichTextBlock", "inlines": [run]} for run in runs],  # of a text block markup would be read
    }
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return _json({"type": "message", "attachments": [attachment]})


def _ntfy(message: Message) -> Body:
    title = visible(f"Training: {message.event} ({message.kind})").encode("ascii", "replace").decode()
    headers = {"Title": title, "Priority": PRIORITIES.get(message.severity, "default"), "Content-Type": "text/plain; charset=utf-8"}
    return message.text.encode("utf-8", "backslashreplace"), headers


WRITERS: dict[str, Callable[[Message], Body]] = {
    "slack": _slack,
    "discord": _discord,
    "teams": _teams,
    "ntfy": _ntfy,
    "json": _plain,
}
"""By format, a message as a service takes it: the body of the request and its headers."""
