"""The Health page in a notebook, while training runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import import_module
from importlib.resources import files
from time import monotonic, time
from typing import Any

from typing_extensions import override

from lightning_hooks.run_report.page import FRAME
from lightning_hooks.run_report.recorded import Run
from lightning_hooks.run_report.verdict import judge
from lightning_hooks.sinks.sink import Sink
from lightning_hooks.sinks.tab.answers import STATIC
from lightning_hooks.sinks.tab.view import curve, entry, heat, whole
from lightning_hooks.trackers.console import show, visible

MOST_BYTES = 400_000
"""Of the page's data: the notebook is saved with it."""
MOST_SHARE = 0.05
"""Of the time that making the page may take; a window that ends sooner is shown with a later one."""
KEY = "."


class LivePage(Sink):
    """Shows a run as the Health tab does, and shows it again when a window has ended; a line of text where there is no notebook."""

    def __init__(self, run: Callable[[], Run]) -> None:
        self._run = run
        self._handle: Any = None
        self._not_before = -float("inf")

    @override
    def window_end(self, members: Sequence[Any]) -> None:
        """Show the window."""
        if monotonic() >= self._not_before:
            self._show()

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """Show the end."""
        self._show(end)

    def _show(self, end: Mapping[str, Any] | None = None) -> None:
        began, run = monotonic(), self._run()
        run.end = run.end if end is None else dict(end)
        if not in_notebook():
            last = f"{run.unit} {run.epochs[-1]}: " if run.epochs else ""
            show([visible(f"Health, {last}{judge(run).headline}")])
            return
        shown: Any = import_module("IPython.display")
        page = shown.HTML(f'<iframe title="Health" {FRAME} srcdoc="{escape(page_of(run))}"></iframe>')
        if self._handle is None:
            self._handle = shown.display(page, display_id=True)
        else:
            self._handle.update(page)
        took = monotonic() - began
        self._not_before = monotonic() + took / MOST_SHARE


def in_notebook() -> bool:
    """Whether IPython's display shows HTML here: in a kernel, and not in its terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def page_of(run: Run) -> str:
    """The page with all of its data, which asks for nothing: a whole HTML document."""
    now = time()
    answers: dict[str, Any] = {
        "runs?known=-1": {"revision": -1, "notes": [], "searched": True, "now": now, "runs": [{"id": KEY, **entry(run, now)}]},
        f"run?run={KEY}": (page := whole(run, now)),
    }
    size = len(json.dumps(answers))
    curves = [("curve", curve, problem["curve"]) for problem in page["problems"] if problem["curve"]]
    maps = [("heat", heat, {name: found[name] for name in ("monitor", "table", "stat")}) for found in page["maps"]]
    wanted: list[tuple[str, Callable[..., dict[str, Any]], dict[str, Any]]] = [*curves, *maps]
    for path, make, key in wanted:
        answer = make(run, **key)
        size += len(json.dumps(answer))
        if size <= MOST_BYTES:
            answers[f"{path}?run={KEY}&" + "&".join(f"{name}={value}" for name, value in key.items())] = answer
        elif path == "heat":
            page["maps"] = [found for found in page["maps"] if not key.items() <= found.items()]
    script, style = (files(package).joinpath(name).read_text(encoding="utf-8") for package, name, _ in STATIC.values())
    data = json.dumps(answers, allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><style>{style}</style></head><body>'
        f'<script type="application/json" id="answers">{data}</script><script type="module">{script}\n'
        'render(JSON.parse(document.getElementById("answers").textContent));</script></body></html>'
    )
