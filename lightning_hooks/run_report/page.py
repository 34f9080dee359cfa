"""The report of a run, and the comparison of two: pages that need nothing else (no network, no script), and Markdown."""

from __future__ import annotations

import dataclasses
import re

from lightning_hooks.run_report.compare import Comparison
from lightning_hooks.run_report.compare_view import ComparisonView
from lightning_hooks.run_report.limits import Limits
from lightning_hooks.run_report.rendering import render
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.view import RunView

MOST_BYTES = 1_900_000
"""A page that would be larger draws less of a large run."""


def health_page(run: Run, most_bytes: int | None = None) -> str:
    """Return the health report of a run: a whole HTML document of less than 2 MB, or of about ``most_bytes``."""
    return _page("page.html.j2", RunView(run, Limits()), most_bytes)


def compare_page(found: Comparison) -> str:
    """Return the comparison of two runs: a whole HTML document of less than 2 MB."""
    return _page("compare.html.j2", ComparisonView(found, Limits()))


def health_markdown(run: Run) -> str:
    """Return the same problems and numbers as Markdown, for a terminal, an issue or a tracker's text."""
    text = render("report.md.j2", RunView(run, Limits(rows=30, alerts=50)))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _page(template: str, view: RunView | ComparisonView, most_bytes: int | None = None) -> str:
    most = MOST_BYTES if most_bytes is None else most_bytes
    while True:
        page = render(template, view)
        if len(page.encode("utf-8", "backslashreplace")) <= most or view.limits.rows < 8:
            return page
        view = dataclasses.replace(view, limits=view.limits.halved())
