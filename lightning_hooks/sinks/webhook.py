"""Notifications to a web address: their texts, how each service takes them, and a thread that training never waits for.

What comes from a run is text there, never markup or a mention. The address is a secret: nothing shows, pickles or saves it.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from html import escape
from http.client import HTTPException
from time import monotonic
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from typing_extensions import override

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import inside_a_sentence
from lightning_hooks.declare.warn import Once
from lightning_hooks.sinks import Notice, Sink
from lightning_hooks.trackers.console import visible

VERSION = 1  # of plain JSON messages
LONGEST = 1500  # characters of a message; Discord takes 2000
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
    more: int = 0  # further alerts of this kind in the same window

    @property
    def text(self) -> str:
        """It as lines of plain text, cut where they are too long."""
        steps = [inside_a_sentence(step.removeprefix("Try ")) for step in self.remedy]  # the line's label says it
        lines = [
            f"[{self.severity}] {self.headline}",
            f"{self.run}: epoch {self.epoch}, step {self.step}",
            *[self.cause] * bool(self.cause),
            *[f"try: {'; '.join(steps)}."] * bool(steps),
            *[f"{self.more} more of this kind"] * bool(self.more),
        ]
        text = "\n".join(visible(" ".join(line.split())) for line in lines)
        return text if len(text) <= LONGEST else f"{text[:LONGEST]} …"


def of_alert(alert: Alert, run: str) -> Message:
    """The notification of a new root alert."""
    return Message(
        "alert",
        alert.kind,
        alert.severity,
        run,
        headline=f"{alert.title} at {alert.where}",
        site=alert.site,
        epoch=alert.epoch,
        step=alert.began,
        cause=" ".join((alert.seen, alert.follows)).strip(),
        remedy=alert.advice,
    )


def of_end(end: Mapping[str, Any], headline: str, run: str) -> Message:
    """The notification of a run's end: the ``end`` event of its file, and the headline of its verdict."""
    by_alert = "stopped_by" in end or end.get("error_type") == "AlertError"
    event = "stopped" if by_alert else {"exception": "crashed"}.get(str(end["how"]), str(end["how"]))
    severity = {"crashed": "critical", "stopped": "warning"}.get(event, "info")
    return Message(event, "end", severity, run, f"Training {event}. {headline}", "", int(end["epoch"]), int(end["step"]))


def _json(value: Any) -> Body:
    return json.dumps(value).encode(), {"Content-Type": "application/json"}


def _ntfy(message: Message) -> Body:
    title = visible(f"Training: {message.event} ({message.kind})").encode("ascii", "replace").decode()
    headers = {"Title": title, "Priority": PRIORITIES.get(message.severity, "default"), "Content-Type": "text/plain; charset=utf-8"}
    return message.text.encode("utf-8", "backslashreplace"), headers


# By format, a message as a service takes it: the body of the request and its headers.
WRITERS: dict[str, Callable[[Message], Body]] = {
    # Three characters make links and mentions.
    "slack": lambda message: _json({"text": escape(message.text, quote=False), "mrkdwn": False}),
    "discord": lambda message: _json(
        {"content": re.sub(r"([\\`*_~|<>\[\]()#:-])", r"\\\1", message.text)[:2000], "allowed_mentions": {"parse": []}}
    ),
    "ntfy": _ntfy,
    "json": lambda message: _json({"version": VERSION, **asdict(message), "text": message.text}),
}
VARIABLE = "LIGHTNING_HOOKS_NOTIFY"
# Hosts, each with those below it, to the format of their messages; every other takes plain JSON.
HOSTS = {
    "hooks.slack.com": "slack",
    "hooks.slack-gov.com": "slack",
    "discord.com": "discord",
    "discordapp.com": "discord",
    "ntfy.sh": "ntfy",
}
MASK = "…"
FORM = "'env:NAME' with the name of a variable that holds it (recommended), or an http(s) address"


class Address:
    """An address that notifications are sent to, of which only the host is shown.

    Args:
        notify: ``env:NAME`` for the value of an environment variable when training starts, or an address. The format of messages is
            that of its host: Slack, Discord, ntfy, and plain JSON for any other.

    Raises:
        TypeError: If it is no text.
        ValueError: If it is no address.
    """

    __slots__ = ("_url",)

    def __init__(self, notify: Address | str) -> None:
        url = notify._url if isinstance(notify, Address) else notify
        if not isinstance(url, str):
            raise TypeError(f"notify must be {FORM}; got a {type(url).__name__}.")
        if not _is_valid(url):
            raise ValueError(f"notify must be {FORM}; got {masked(url)!r}, of which no more is shown.")
        self._url: str = url

    def url(self) -> str:
        """The address; empty where it is not known here: the variable is not set, or it was masked in a pickle or a saved file."""
        url = os.environ.get(self._url[4:], "").strip() if self._url.startswith("env:") else self._url
        return url if _is_valid(url) and not url.startswith("env:") and not url.endswith(MASK) else ""

    @property
    def format(self) -> str:
        """The format of its messages."""
        host = (urlsplit(self.url()).hostname or "").lower()
        if host.startswith("ntfy."):
            return "ntfy"
        return next((str(form) for known, form in HOSTS.items() if host == known or host.endswith(f".{known}")), "json")

    def __repr__(self) -> str:
        return f"Address({str(self)!r})"

    def __str__(self) -> str:
        return masked(self._url)

    def __reduce__(self) -> tuple[type[Address], tuple[str]]:
        return Address, (str(self),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Address:
        return self

    __copy__ = __deepcopy__


def masked(url: str) -> str:
    """An address without what is secret: the scheme and the host; ``env:NAME`` is none."""
    if url.startswith("env:") and url[4:].isidentifier():
        return url
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname:
            return f"{parts.scheme}://{parts.hostname}/{MASK}"
    return MASK


def _is_valid(url: str) -> bool:
    if url.startswith("env:"):
        return url[4:].isidentifier()
    if not url.isprintable() or " " in url:
        return False
    with suppress(ValueError):
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    return False


with suppress(ImportError):  # what LightningCLI parses with: a configuration that it saves has the masked address
    from jsonargparse.typing import register_type

    register_type(Address, serializer=str, deserializer=Address)


SECONDS = 5.0  # after which a request is given up
LAST_SECONDS = 2.0  # how long the end of training waits for what is not sent yet


class Webhook(Sink):
    """Sends new root alerts above info, and the end of a run, to an address. It never raises.

    Args:
        address: Where to.
        run: The run's name.
        warn: Called once, in the thread that training runs in, with what went wrong.
    """

    def __init__(self, address: Address, run: str, warn: Callable[[str], None]) -> None:
        self.address, self._run, self._warn_once = address, run, Once(warn)
        self._threads: list[threading.Thread] = []  # of what was not sent when the last one began
        self._fault = ""

    @override
    def alerts(self, notices: Sequence[Notice]) -> None:
        """Send new alerts, one message for each kind."""
        new = [notice.alert for notice in notices if notice.over is None and notice.alert.severity != "info"]
        kinds = Counter(alert.kind for alert in new)
        first = {alert.kind: alert for alert in reversed(new)}
        self._send([replace(of_alert(first[kind], self._run), more=number - 1) for kind, number in kinds.items()])
        self._warn_of_fault()

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """Send the end of the run, and wait for all that is being sent, but not long."""
        self._send([of_end(end, headline, self._run)])
        until = monotonic() + LAST_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - monotonic()))
            if thread.is_alive():
                self._fault = self._fault or f"no answer within {LAST_SECONDS:.0f} s at the end of training"
        self._warn_of_fault()

    def _send(self, messages: Sequence[Message]) -> None:
        """Send messages one after the other, in a thread that waits for no other: an end need not wait for alerts."""
        if messages:
            thread = threading.Thread(target=self._work, args=(messages,), name="lightning_hooks-notify", daemon=True)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()

    def _work(self, messages: Sequence[Message]) -> None:
        for message in messages:
            try:
                fault = post(self.address.url(), *WRITERS[self.address.format](message))
            except Exception as error:  # noqa: BLE001  a notification is no reason to end a training
                fault = type(error).__name__  # its text may hold the address
            self._fault = self._fault or fault

    def _warn_of_fault(self) -> None:
        if self._fault:
            self._warn_once(
                f"A notification to {self.address} could not be sent: {self._fault}. Training goes on; this warning is shown once."
            )


class _NoRedirects(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none: the answer is an error with its status."""


def post(url: str, body: bytes, headers: Mapping[str, str], seconds: float = SECONDS) -> str:
    """Send a request, through the proxy that the environment names, and look at no more than the status of the answer.

    Returns:
        What went wrong, without the address; empty if nothing did.
    """
    parts = urlsplit(url)
    for secret in (part for part in (url, parts.path.strip("/"), parts.query) if len(part) > 8):
        body = body.replace(secret.encode(), MASK.encode())  # as an error's text in the message may hold it
    try:
        with build_opener(_NoRedirects).open(Request(url, body, {"User-Agent": "lightning_hooks", **headers}), timeout=seconds):
            return ""
    except HTTPError as error:
        error.close()
        return f"it answered {error.code}" + ", and redirects are not followed" * (300 <= error.code < 400)
    except (OSError, HTTPException) as error:
        cause = error.reason if isinstance(error, URLError) and isinstance(error.reason, Exception) else error
        return f"no answer within {seconds:g} s" if isinstance(cause, TimeoutError) else type(cause).__name__
