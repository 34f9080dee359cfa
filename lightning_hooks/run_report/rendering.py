"""Jinja2 templates filled in; what is put into them is escaped by construction, as HTML or as Markdown."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from lightning_hooks.run_report.numerals import DASH, number, percent
from lightning_hooks.trackers.console import markdown_text, visible

if TYPE_CHECKING:
    from jinja2 import Environment

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
    made.filters |= {"number": number, "percent": percent}
    made.globals |= {"dash": DASH, "signs": SIGNS, "style": _style}
    return made


def _style() -> str:
    return files("lightning_hooks.run_report").joinpath("templates", "style.css").read_text(encoding="utf-8").replace("\n", "")
