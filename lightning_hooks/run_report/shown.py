"""The health report of a run as a notebook shows it."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from lightning_hooks.run_report.page import health_page
from lightning_hooks.run_report.rendering import render
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.verdict import Verdict, judge

FRAME = 'style="width:100%;height:36rem;border:0;resize:vertical;overflow:auto"'
MOST_BYTES = 400_000
"""Of the page within a notebook, which is saved with it."""


@dataclass(frozen=True, slots=True, repr=False)
class RunReport:
    """The health report of a run, as far as its windows have ended. A notebook shows its page.

    Attributes:
        run: What the monitors reported.
        path: The page on disk, ``report.html``, which is written when training ends; None before, and where nothing is written
            (``logger=False`` without ``report_dir``, ``report_dir=None``, ranks other than 0).
    """

    run: Run
    path: Path | None

    @property
    def verdict(self) -> Verdict:
        """What is wrong, since when, and what to try."""
        return judge(self.run)

    def __repr__(self) -> str:
        return f"RunReport({self.verdict.headline!r}, path={None if self.path is None else str(self.path)!r})"

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles and the notebook's do not meet."""
        return f'<iframe title="Health report" {FRAME} srcdoc="{escape(health_page(self.run, MOST_BYTES))}"></iframe>'

    def head(self) -> str:
        """The verdict and the first problems: some kilobytes of HTML in the colours of the notebook that shows it."""
        return render("head.html.j2", self)
