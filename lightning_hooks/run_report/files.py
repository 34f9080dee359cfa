"""A run's report on disk: ``report.html`` and ``report.md`` next to ``reports.jsonl``."""

from __future__ import annotations

import os
from pathlib import Path

from lightning_hooks.run_report.page import health_markdown, health_page
from lightning_hooks.run_report.run import Run

PAGE = "report.html"
MARKDOWN = "report.md"


def write_health(run: Run, folder: Path | None = None) -> list[Path]:
    """Write a run's report.

    Args:
        run: The run.
        folder: Where to; None for where its reports are.

    Returns:
        The files: the page, and the same as Markdown.
    """
    folder = run.path if folder is None else folder
    return [write_whole(folder / PAGE, health_page(run)), write_whole(folder / MARKDOWN, health_markdown(run))]


def write_whole(path: Path, text: str) -> Path:
    """Write a file so that it is there whole or, if that fails, as it was before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path
