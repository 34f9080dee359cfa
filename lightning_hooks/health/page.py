"""The health report of a run as one HTML page that needs nothing else: no network, no script, no picture library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from lightning_hooks.health import drawing, telling, training
from lightning_hooks.health.html import Markup, tag
from lightning_hooks.health.limits import Limits
from lightning_hooks.health.run import Run
from lightning_hooks.health.verdict import judge

MOST_BYTES = 1_900_000
"""A page that would be larger draws less of a large run."""


def health_page(run: Run) -> str:
    """Return the health report of a run: a whole HTML document of less than 2 MB."""
    limits = Limits()
    while True:
        page = _page(run, limits)
        if len(page.encode("utf-8", "backslashreplace")) <= MOST_BYTES or limits.rows < 8:
            return page
        limits = limits.halved()


def _page(run: Run, limits: Limits) -> str:
    verdict = judge(run)
    parts: list[tuple[str, str, Any]] = [
        ("alerts", "Alerts", telling.alerts(run, limits)),
        ("training", "Loss and learning rate", training.training(run)),
        ("gradients", "Gradient flow", drawing.gradient_flow(run, limits)),
        ("outputs", "Outputs", drawing.features(run, limits)),
        ("maps", "Over the epochs", drawing.heat_maps(run, limits)),
        ("clipping", "Clipping", drawing.clipping(run)),
        ("silent", "Silent", telling.silent(run)),
        ("model", "Model and set-up", training.model(run, limits)),
        ("coverage", "Coverage", telling.coverage(run)),
        ("cost", "Cost", telling.cost(run)),
    ]
    found = [part for part in parts if part[2]]
    links = tag("nav", [tag("a", title, href=f"#{anchor}") for anchor, title, _ in found], aria_label="Contents")
    title = f"Health report: {run.fit.get('model', 'training')}"
    body = [
        tag("header", tag("h1", title, " · ", run.name)),
        telling.headline(verdict),
        links,
        telling.findings(verdict),
        [tag("section", tag("h2", heading, id=anchor), content) for anchor, heading, content in found],
        tag("footer", _colophon(run)),
    ]
    return document(title, body)


def document(title: str, body: Sequence[Any]) -> str:
    """Wrap content into a document that may load nothing and run nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        Markup(f"<style>{_style()}</style>"),
    ]
    return "<!doctype html>\n" + tag("html", tag("head", head), tag("body", tag("main", body)), lang="en") + "\n"


@cache
def _style() -> str:
    return files("lightning_hooks.health").joinpath("style.css").read_text(encoding="utf-8").replace("\n", "")


def _colophon(run: Run) -> list[Markup]:
    fit = run.fit
    made = ", ".join(
        f"{what} {fit[key]}"
        for what, key in (("lightning_hooks", "package"), ("torch", "torch"), ("Lightning", "lightning"))
        if key in fit
    )
    when = f" Training started {fit['started']}." if "started" in fit else ""
    return [
        tag("p", f"Made by {made or 'lightning_hooks'} of reports.jsonl beside this file.{when}"),
        tag("p", "To make it again: ", tag("code", "python -m lightning_hooks report RUN_DIR"), "; to put two runs side by side: ",
            tag("code", "python -m lightning_hooks compare RUN_A RUN_B")),
    ]  # fmt: skip
