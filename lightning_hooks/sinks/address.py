"""Where notifications go. The address is a secret: nothing shows, pickles or saves it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

VARIABLE = "LIGHTNING_HOOKS_NOTIFY"
FORMATS = ("slack", "discord", "teams", "ntfy", "json")
HOSTS = {
    "hooks.slack.com": "slack",
    "hooks.slack-gov.com": "slack",
    "discord.com": "discord",
    "discordapp.com": "discord",
    "webhook.office.com": "teams",
    "logic.azure.com": "teams",
    "powerplatform.com": "teams",
    "ntfy.sh": "ntfy",
}
"""Hosts, each with those below it, to the format of their messages; every other takes plain JSON."""
MASK = "…"
FORM = "'env:NAME' with the name of a variable that holds it (recommended), an http(s) address, or {'url': …, 'format': …}"


class Address:
    """An address that notifications are sent to, of which only the host is shown.

    Args:
        notify: ``env:NAME`` for the value of an environment variable when training starts, an address, or a mapping with ``url``
            (either of these) and ``format`` (``slack``, ``discord``, ``teams``, ``ntfy`` or ``json``; by host name otherwise).

    Raises:
        TypeError: If it is none of these.
        ValueError: If it is no address, or the format is not known.
    """

    __slots__ = ("_format", "_url")
    _url: str
    _format: str | None

    def __init__(self, notify: Address | str | Mapping[str, str]) -> None:
        if isinstance(notify, Address):
            self._url, self._format = notify._url, notify._format
            return
        if isinstance(notify, Mapping):
            unknown = [str(key) for key in notify if key not in ("url", "format")]
            if unknown or "url" not in notify:
                raise ValueError(f"notify must be {FORM}; got a mapping with {', '.join(sorted(map(str, notify))) or 'nothing'}.")
        given = notify if isinstance(notify, Mapping) else {"url": notify}
        url, form = given["url"], given.get("format")
        if not isinstance(url, str):
            raise TypeError(f"notify must be {FORM}; got a {type(url).__name__}.")
        if form is not None and form not in FORMATS:
            raise ValueError(f"the format of notify must be one of {', '.join(FORMATS)}; got {form!r}.")
        if not _is_valid(url):
            raise ValueError(f"notify must be {FORM}; got {masked(url)!r}, of which no more is shown.")
        self._url, self._format = url, form

    def url(self) -> str:
        """The address; empty where it is not known here: the variable is not set, or it was masked in a pickle or a saved file."""
        url = os.environ.get(self._url[4:], "").strip() if self._url.startswith("env:") else self._url
        return url if _is_valid(url) and not url.startswith("env:") and not url.endswith(MASK) else ""

    @property
    def format(self) -> str:
        """The format of its messages."""
        if self._format is not None:
            return self._format
        host = (urlsplit(self.url()).hostname or "").lower()
        if host.startswith("ntfy."):
            return "ntfy"
        return next((str(form) for known, form in HOSTS.items() if host == known or host.endswith(f".{known}")), "json")

    @property
    def plain(self) -> Any:
        """It as an argument, with the address masked."""
        return masked(self._url) if self._format is None else {"url": masked(self._url), "format": self._format}

    def __repr__(self) -> str:
        return f"Address({self.plain!r})"

    def __str__(self) -> str:
        return masked(self._url)

    def __reduce__(self) -> tuple[type[Address], tuple[Any]]:
        return Address, (self.plain,)

    def __copy__(self) -> Address:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Address:
        return self


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

    register_type(Address, serializer=lambda address: address.plain, deserializer=Address)
