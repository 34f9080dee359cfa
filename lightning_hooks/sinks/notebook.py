"""The Health page in a notebook, while training runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from time import monotonic
from typing import Any

from typing_extensions import override

from lightning_hooks.run_report.page import MOST_NOTEBOOK_BYTES, framed, health_page
from lightning_hooks.run_report.recorded import Run
from lightning_hooks.run_report.verdict import judge
from lightning_hooks.sinks import Sink
from lightning_hooks.trackers.console import show, visible

MOST_SHARE = 0.05  # of the time that making the page may take; a window that ends sooner is shown with a later one


class LivePage(Sink):
    """Shows a run as the Health tab does, and shows it again when a window has ended; a line of text where there is no notebook."""

    def __init__(self, run: Callable[[], Run]) -> None:
        self._run = run
        self._handle: Any = None
        self._not_before = -float("inf")

    @override
    def window_end(self, members: Sequence[Any]) -> None:
        if monotonic() >= self._not_before:
            self._show()

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        self._show(end)

    def _show(self, end: Mapping[str, Any] | None = None) -> None:
        began, run = monotonic(), self._run()
        run.end = run.end if end is None else dict(end)
        if not in_notebook():
            last = f"{run.unit} {run.epochs[-1]}: " if run.epochs else ""
            show([visible(f"Health, {last}{judge(run).headline}")])
            return
        shown: Any = import_module("IPython.display")
        page = shown.HTML(framed(health_page(run, MOST_NOTEBOOK_BYTES), "Health"))
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)
        self._not_before = monotonic() + (monotonic() - began) / MOST_SHARE


def in_notebook() -> bool:
    """Whether IPython's display shows HTML here: in a kernel, and not in its terminal."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
