"""The health report of a run: read from its file, judged, written as HTML and Markdown, and compared with another run."""

from lightning_hooks.run_report.page import health_page
from lightning_hooks.run_report.run import Run, read_run
from lightning_hooks.run_report.verdict import Problem, Verdict, judge

__all__ = ["Problem", "Run", "Verdict", "health_page", "judge", "read_run"]
