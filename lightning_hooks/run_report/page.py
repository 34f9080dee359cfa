"""The report of a run, and the comparison of two: a page that needs nothing else, and Markdown.

The page is one module, ``page.js``, which draws what :mod:`lightning_hooks.run_report.data` says. TensorBoard's tab and ``serve``
answer its requests; here the data is inside the file.
"""

from __future__ import annotations

import base64
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from lightning_hooks.declare.plain import lines_html
from lightning_hooks.run_report.blocks import flat, markdown
from lightning_hooks.run_report.data import Page, heat, whole
from lightning_hooks.run_report.lines import write_whole
from lightning_hooks.run_report.recorded import MOST_DRAWN, Run
from lightning_hooks.run_report.verdict import Verdict, courses, judge
from lightning_hooks.trackers.console import visible

PAGE = "report.html"
MARKDOWN = "report.md"
MOST_BYTES = 1_900_000  # a page that would be larger draws less of a large run
MOST_IN_MARKDOWN = 60  # rows of a table
MOST_NOTEBOOK_BYTES = 400_000  # of the page within a notebook, which is saved with it


def write_health(run: Run, folder: Path | None = None) -> list[Path]:
    """Write a run's report to a folder, or where its reports are; return the page, and the same as Markdown."""
    folder, text = run.path if folder is None else folder, health_markdown(run)
    return [write_whole(folder / PAGE, health_page(run, text=text)), write_whole(folder / MARKDOWN, text)]


def health_page(run: Run, most_bytes: int = MOST_BYTES, text: str | None = None) -> str:
    """Return the health report of a run: a whole HTML document of less than 2 MB, or of about ``most_bytes``.

    ``text`` is the same as Markdown, where it is known.
    """
    most, found, text = MOST_DRAWN, courses(run), health_markdown(run) if text is None else text
    while True:
        page = whole(run, 0.0, most)
        blocks = (block for section in page["sections"] for card in section["cards"] for block in flat(card))
        maps = [{name: block["map"][name] for name in ("monitor", "table", "stat")} for block in blocks if "map" in block]
        curves = [problem["curve"] for problem in page["problems"] if problem["curve"]]
        answers = {f"heat?{urlencode(key)}": heat(run, **key, most=most, found=found) for key in (*maps, *curves)}
        made = document(page, text, answers)
        if len(made.encode("utf-8", "backslashreplace")) <= most_bytes or most < 8:
            return made
        most //= 2


def health_markdown(run: Run) -> str:
    """Return the same problems and numbers as Markdown, for a terminal, an issue or a tracker's text."""
    return markdown(whole(run, 0.0, MOST_IN_MARKDOWN))


def document(page: Page, text: str, answers: Mapping[str, Any] | None = None) -> str:
    """Return a whole HTML document: the module, a page and the answers to its requests, and the text for where no script runs.

    The policy lets the module run and nothing else; the data is no HTML, and holds no ``<`` that could end its element.
    """
    own = map(files("lightning_hooks.run_report").joinpath, ("page.css", "page.js"))
    style, module = (file.read_text(encoding="utf-8") for file in own)
    script = f'{module}\nrender(JSON.parse(document.getElementById("data").textContent));\n'
    digest = base64.b64encode(sha256(script.encode()).digest()).decode()
    data = json.dumps({"page": page, "answers": answers or {}}, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(visible(page['title']))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f"<noscript><pre>{escape(text, quote=False)}</pre></noscript>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script type="module">{script}</script>\n</body>\n</html>'
    )


def framed(page: str, title: str) -> str:
    """A page in a frame, so that its styles and those of the notebook do not meet."""
    style = "width:100%;height:36rem;border:0;resize:vertical;overflow:auto"
    return f'<iframe title="{title}" style="{style}" srcdoc="{escape(page)}"></iframe>'


def verdict_lines(run: Run) -> list[str]:
    """A run's verdict as lines for a terminal."""
    verdict = judge(run)
    lines = [f"[{verdict.status}] {verdict.headline}", *(f"  {detail}" for detail in verdict.details)]
    for problem in verdict.problems:
        if problem.severity != "info":
            state = problem.severity if problem.lasts else "passed"
            seen = f"[{state}] {problem.what} at {problem.where}, {problem.when}. {problem.seen}"
            text = " ".join([seen, *(f"{step}." for step in problem.advice)])
            lines += ["", *textwrap.wrap(text, 100, initial_indent="  ", subsequent_indent="    ", break_long_words=False)]
    return lines


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
        return framed(health_page(self.run, MOST_NOTEBOOK_BYTES), "Health report")

    def head(self) -> str:
        """The verdict and the first problems, in the colours of the notebook that shows it."""
        lines = verdict_lines(self.run) if self.run.epochs else [*verdict_lines(self.run)[:1], FIRST]
        more = [f"and {len(lines) - MOST_LINES} more lines"] * (len(lines) > MOST_LINES)
        shown = [*lines[:MOST_LINES], *more, *[f"Report: {self.path}"] * bool(self.path)]
        return lines_html([visible(line[:MOST_CHARACTERS]) for line in shown])


FIRST = "The first report is made when the first window of trainer.fit() ends: an epoch, or report_every_n_steps batches."
MOST_LINES, MOST_CHARACTERS = 40, 400  # of the head of a report
