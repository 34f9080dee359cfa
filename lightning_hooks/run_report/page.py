"""The report of a run, and the comparison of two: pages that need nothing else (no network, no script), and Markdown."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from functools import cache, cached_property
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.charts import SHOWN_ROWS, Chart, Row, Rows, rows, strip
from lightning_hooks.run_report.compare import Comparison
from lightning_hooks.run_report.heat import HEATS
from lightning_hooks.run_report.lines import write_whole
from lightning_hooks.run_report.recorded import Limits
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.sections import SECTIONS, compared
from lightning_hooks.run_report.text import DASH, measured, number, percent
from lightning_hooks.run_report.training import layers, settings
from lightning_hooks.run_report.verdict import Verdict, judge
from lightning_hooks.run_report.view import RunView
from lightning_hooks.trackers.console import markdown_text, visible

if TYPE_CHECKING:
    from jinja2 import Environment


LAYERS = ("rms", "update_ratio", "std", "dead_fraction", "saturated_fraction", "zero_fraction")
"""The statistics of which all layers are drawn."""
CAPTIONS = {stat: caption for _, _, stat, caption in HEATS}


@dataclass(frozen=True)
class ComparisonView:
    """The comparison of two runs; a section that has nothing to show is empty. Each is computed when a template asks for it."""

    found: Comparison
    limits: Limits

    @cached_property
    def layers(self) -> list[tuple[str, Rows, int]]:
        """The layers of both on one scale: the statistic in words, those that are drawn, how many there are."""
        found = []
        for stat in LAYERS:
            differences, linear = self.found.of(stat), stat in FRACTIONS
            if not differences or (linear and not any(difference.a or difference.b for difference in differences)):
                continue
            kept = set(sorted(differences, key=lambda difference: -difference.size)[: self.limits.rows])
            lines = [Row(d.name, d.a, other=d.b, shown=d.change) for d in differences if d in kept]
            found.append((CAPTIONS[stat], rows(lines, "A to B", linear), len(differences)))
        return found

    @cached_property
    def declared(self) -> list[tuple[str, list[tuple[str, Chart]]]]:
        """The sections that capabilities declare: heading, and a curve of both runs for each row."""
        found, both = [], (self.found.a, self.found.b)
        for section in SECTIONS:
            first, _ = next(iter(section.panels[0].curves.values()))
            names = dict.fromkeys(difference.name for difference in self.found.of(first))
            found.append((section.title, [(name, compared(*both, section, name)) for name in names]))
        return [(title, rows) for title, rows in found if rows]


PAGE = "report.html"
MARKDOWN = "report.md"


def write_health(run: Run, folder: Path | None = None) -> list[Path]:
    """Write a run's report to a folder, or where its reports are; return the page, and the same as Markdown."""
    folder = run.path if folder is None else folder
    return [write_whole(folder / PAGE, health_page(run)), write_whole(folder / MARKDOWN, health_markdown(run))]


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


SIGNS = {"failed": "✖", "critical": "✖", "warning": "▲", "info": "●", "healthy": "✔", "unknown": "?"}


def render(template: str, view: Any) -> str:
    """Fill in a template of the folder ``templates`` with a view."""
    return environment(html=template.endswith(".html.j2")).get_template(template).render(view=view)


@cache
def environment(html: bool) -> Environment:
    """What templates share: escaping, as HTML or as Markdown, filters, signs; a name that is not there is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup, escape

    written = escape if html else markdown_text

    def escaped(value: Any) -> Markup:
        return value if isinstance(value, Markup) else Markup(written(visible(str(value))))

    made = Environment(
        loader=PackageLoader("lightning_hooks.run_report"),
        autoescape=True,  # that macros return markup, which is not escaped again
        finalize=escaped,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = files("lightning_hooks.run_report").joinpath("templates", "style.css").read_text(encoding="utf-8").replace("\n", "")
    made.filters |= {"number": number, "percent": percent, "measured": measured, "blocks": strip}
    made.globals |= {"dash": DASH, "signs": SIGNS, "style": style, "shown_rows": SHOWN_ROWS}
    made.globals |= {"settings": settings, "layers": layers}
    return made


FRAME = 'style="width:100%;height:36rem;border:0;resize:vertical;overflow:auto"'
MOST_NOTEBOOK_BYTES = 400_000
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
        return f'<iframe title="Health report" {FRAME} srcdoc="{escape(health_page(self.run, MOST_NOTEBOOK_BYTES))}"></iframe>'

    def head(self) -> str:
        """The verdict and the first problems: some kilobytes of HTML in the colours of the notebook that shows it."""
        return render("head.html.j2", self)
