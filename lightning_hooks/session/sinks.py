"""The sinks of one run: each is called with what happens, and one that raises harms neither the others nor training."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from lightning_hooks.declare.host import Host
from lightning_hooks.declare.warn import info
from lightning_hooks.hooks.checks import check_bools
from lightning_hooks.run_report.lines import FOLDER, REPORTS
from lightning_hooks.run_report.run import run_name
from lightning_hooks.session.member import Member
from lightning_hooks.session.terminal import run_report, verdict_of
from lightning_hooks.sinks import Sink
from lightning_hooks.sinks.notebook import LivePage
from lightning_hooks.sinks.webhook import FORM, VARIABLE, Address, Webhook

_warn = partial(info, level=logging.WARNING)


class Sinks:
    """The sinks of one run, in the order in which they are called."""

    def __init__(self, *sinks: Sink) -> None:
        self._each = list(sinks)

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._each)

    def add(self, sink: Sink) -> None:
        """Call a sink from now on."""
        self._each.append(sink)

    def call(self, event: str, *arguments: Any) -> None:
        """Call an event of :class:`~lightning_hooks.sinks.Sink`, by its name, of each sink; one that raises is called no more."""
        for sink in list(self._each):
            try:
                getattr(sink, event)(*arguments)
            except Warning:  # the user has made an error of it
                raise
            except Exception as error:  # noqa: BLE001  a sink must not end a run
                self._disable(sink, error)

    def end(self, members: Sequence[Member], end: dict[str, Any]) -> None:
        """The run of these members has ended, as :func:`~lightning_hooks.session.terminal.end_event` says."""
        for member in members:
            member.history.add(member.report)
            member.end = end
        headline = verdict_of(members).headline
        for sink in list(self._each):
            try:
                sink.end(end, headline)
            except Exception as error:  # noqa: BLE001  how the run ended goes first
                self._disable(sink, error)

    def _disable(self, sink: Sink, error: Exception) -> None:
        """A sink that raises is called no more. The text of its error is not shown: it may hold an address."""
        self._each.remove(sink)
        what = f"{type(sink).__name__}, which follows the run, raised {type(error).__name__}, and is not called any more."
        _warn(f"{what} Training goes on.")


class ReportTargets:
    """Where a run is sent to: a webhook, and the page in a notebook.

    Attributes:
        notify: The address, which shows no more than its host; None for what ``LIGHTNING_HOOKS_NOTIFY`` says when training starts.
        live: Whether the page is shown.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If it is no address, or its format is not known.
    """

    def __init__(self, notify: Address | str | None = None, live: bool = False) -> None:
        check_bools(live=live)
        self.notify, self.live = None if notify is None else Address(notify), live

    def add_to(self, sinks: Sinks, host: Host, members: Sequence[Member]) -> None:
        """Send a run that its members have joined, on rank 0."""
        if not host.setup.is_global_zero:
            return
        members = list(members)
        if self.live:
            sinks.add(LivePage(lambda: run_report(members).run))
        notify = self.notify
        if notify is None and os.environ.get(VARIABLE, "").strip():
            notify = Address(f"env:{VARIABLE}")
        if notify is None:
            return
        url = notify.url()
        if not url:
            _warn(f"notify={str(notify)!r}: no address is known here, so that nothing is sent. Give {FORM}. Training goes on.")
        elif not any(isinstance(other, Webhook) and other.address.url() == url for other in sinks):
            folder = next((member.folder for member in members if member.folder is not None), None)
            model = type(host.model).__name__
            run = model if folder is None else f"{model}, {run_name(folder / FOLDER / REPORTS)}"
            sinks.add(Webhook(notify, run, _warn))
