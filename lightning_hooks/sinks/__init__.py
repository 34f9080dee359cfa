"""Receivers of windows and alerts during a run: the Health tab of TensorBoard, webhooks, notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from lightning_hooks.declare.alert import Alert
    from lightning_hooks.declare.book import Occurrence


class Notice(NamedTuple):
    """An alert that is passed on."""

    alert: Alert
    member: Any = None  # the member of the session that found it
    actions: frozenset[str] = frozenset()  # what on_alert says, of its own member and of those that found a consequence of it
    over: Occurrence | None = None  # the windows with it, where it has ended; else None


class Sink:
    """A sink of a run. It is called in the thread that training runs in, on every rank that it was added on.

    Members are those of the session; what a sink does not want, it leaves as it is here.
    """

    def epoch_start(self) -> None:
        """An epoch starts."""

    def reports(self, members: Sequence[Any], of_epoch: bool = False) -> None:
        """Windows of these members have ended, or an epoch of several; their reports hold what their own rules found."""

    def alerts(self, notices: Sequence[Notice]) -> None:
        """New root alerts, infos among them, the first causes first; then those that have ended."""

    def window_end(self, members: Sequence[Any]) -> None:
        """The alerts of these members' reports are in order of cause, and were passed on."""

    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """The run has ended: the ``end`` event of its file, and the headline of its verdict."""
