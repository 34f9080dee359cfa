"""What a run is sent to while it goes on: a webhook, and the page in a notebook."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial

from lightning_hooks.declare.warn import info
from lightning_hooks.hooks.checks import check_bools
from lightning_hooks.run_report.lines import FOLDER, REPORTS
from lightning_hooks.run_report.run import Run, run_name
from lightning_hooks.session.member import Member
from lightning_hooks.session.session import Session
from lightning_hooks.session.so_far import run_report
from lightning_hooks.sinks.notebook import LivePage
from lightning_hooks.sinks.webhook import FORM, VARIABLE, Address, Webhook

_warn = partial(info, level=logging.WARNING)


class Outlets:
    """Where a run is sent to.

    Args:
        notify: Where notifications go; None for what ``LIGHTNING_HOOKS_NOTIFY`` says when training starts.
        live: Whether the page is shown.

    Attributes:
        notify: The address, which shows no more than its host; None for none.
        live: Whether the page is shown.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If it is no address, or its format is not known.
    """

    def __init__(self, notify: Address | str | Mapping[str, str] | None = None, live: bool = False) -> None:
        check_bools(live=live)
        self.notify, self.live = None if notify is None else Address(notify), live

    def add_to(self, session: Session) -> None:
        """Follow a run that its members have joined, on rank 0."""
        if not session.host.setup.is_global_zero:
            return
        members = list(session.members)
        if self.live:
            session.listeners.add(LivePage(partial(_run_of, members)))
        notify = self.notify
        if notify is None and os.environ.get(VARIABLE, "").strip():
            notify = Address(f"env:{VARIABLE}")
        if notify is None:
            return
        url = notify.url()
        if not url:
            _warn(f"notify={notify.plain!r}: no address is known here, so that nothing is sent. Give {FORM}. Training goes on.")
        elif not any(isinstance(other, Webhook) and other.address.url() == url for other in session.listeners):
            folder = next((member.folder for member in members if member.folder is not None), None)
            model = type(session.host.model).__name__
            run = model if folder is None else f"{model}, {run_name(folder / FOLDER / REPORTS)}"
            session.listeners.add(Webhook(notify, run, _warn))


def _run_of(members: Sequence[Member]) -> Run:
    return run_report(members).run
