"""Those who are handed a run's new alerts, the end of its windows, and its own end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from lightning_hooks.alerts import Alert
from lightning_hooks.declare.warn import info


class RunListener(Protocol):
    """An observer of a run. It is called in the thread that training runs in, on every rank that it was added on."""

    def alerts(self, alerts: Sequence[Alert]) -> None:
        """New root alerts, infos among them."""

    def window_end(self) -> None:
        """A window has ended, and its reports are written."""

    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """The run has ended: the ``end`` event of its file, and the headline of its verdict."""


class Listeners:
    """The listeners of one run. One that raises is logged once, and not called any more."""

    def __init__(self) -> None:
        self._each: list[RunListener] = []

    def __iter__(self) -> Iterator[RunListener]:
        return iter(self._each)

    def add(self, listener: RunListener) -> None:
        """Call a listener from now on."""
        self._each.append(listener)

    def alerts(self, alerts: Sequence[Alert]) -> None:
        """Hand over new root alerts."""
        if alerts:
            self._call(lambda listener: listener.alerts(alerts))

    def window_end(self) -> None:
        """A window has ended."""
        self._call(lambda listener: listener.window_end())

    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """The run has ended."""
        self._call(lambda listener: listener.end(end, headline))

    def _call(self, event: Callable[[RunListener], None]) -> None:
        for listener in list(self._each):
            try:
                event(listener)
            except Exception as error:  # noqa: BLE001  an observer must not end a run
                self._each.remove(listener)
                what = (
                    f"{type(listener).__name__}, which follows the run, raised {type(error).__name__}, and is not called any more."
                )
                info(f"{what} Training goes on.", logging.WARNING)
