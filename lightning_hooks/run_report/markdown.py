"""A page as Markdown, for a terminal, an issue or a tracker's text, and for a browser without JavaScript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lightning_hooks.run_report.blocks import Block, flat
from lightning_hooks.run_report.text import DASH, number
from lightning_hooks.trackers.console import markdown_text, visible

SIGNS = {"failed": "✖", "critical": "✖", "warning": "▲", "info": "●", "healthy": "✔", "unknown": "?"}
SHOWN_EPOCHS = 10
MOST_NAMES = 30
PICTURES = ("rows", "map")


def markdown(page: Mapping[str, Any]) -> str:
    """Write a page of :mod:`lightning_hooks.run_report.data`; curves are tables of ten windows, heat maps are left out."""
    return "\n\n".join(_parts(page)) + "\n"


def _parts(page: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {_text(page['title'])}"
    for verdict in page["verdicts"]:
        name = f"{verdict['letter']}: {_text(verdict['name'])}. " if "letter" in verdict else ""
        yield f"{name}**{SIGNS.get(verdict['status'], '●')} {_text(verdict['headline'])}**"
        yield from map(_text, verdict["details"])
    for problem in page.get("problems", ()):
        if problem["severity"] != "info":
            yield from _problem(problem)
    for section in page["sections"]:
        cards = [[*flat(card)] for card in section["cards"]]
        parts = [part for card in cards if any(_says(block) for block in card) for part in map(_block, card) if part]
        if parts:
            yield from [f"## {_text(section['title'])}"] * bool(section["title"])
            yield from parts


def _says(block: Block) -> bool:
    """Whether a block is more than a sentence that goes with a picture."""
    return not any(key in block for key in PICTURES) and set(block) != {"text"}


def _problem(problem: Mapping[str, Any]) -> Iterator[str]:
    state = problem["severity"] if problem["lasts"] else "passed"
    sure = "" if problem["probability"] is None else f", {problem['probability']:.0%} probable"
    yield f"## {SIGNS.get(problem['severity'], '●')} {_text(problem['title'])} ({_text(state)}{sure})"
    yield f"At {_text(problem['where'])}, {_text(problem['when'])}. {_text(problem['seen'])}"
    if problem["advice"]:
        yield "**What to try:**"
        yield _list(problem["advice"])
    if problem["rules"]:
        yield f"Its rules and their limits: `{problem['rules']}`. {_text(problem['record'])}".strip()


def _block(block: Block) -> str:
    if "text" in block:
        return _text(block["text"])
    if "names" in block:
        return f"- {_text(block['title'])}: {_names(block['names'], block['more'])}"
    if "title" in block:
        return f"{_text(block['title'])}:"
    if "facts" in block:
        return _list(f"{what}: {value}" for what, value in block["facts"])
    if "table" in block:
        return _table(block["table"]["heads"], block["table"]["rows"])
    if "alerts" in block:
        return _alerts(block)
    if "code" in block:
        return "\n".join(f"    {visible(line)}" for line in block["code"].splitlines())
    return _chart(block["chart"]) if "chart" in block else ""


def _chart(chart: Mapping[str, Any]) -> str:
    epochs, lines = chart["epochs"], [line for line in chart["lines"] if not line.get("dashed")]
    last, shown = len(epochs) - 1, min(len(epochs), SHOWN_EPOCHS)
    places = [round(at * last / max(shown - 1, 1)) for at in range(shown)]
    cells = [[epochs[at], *(line["values"][at] for line in lines)] for at in places]
    title = f"{_text(chart['title'])}:\n\n" if chart["title"] else ""
    return title + _table([chart["unit"], *(line["label"] for line in lines)], cells)


def _alerts(block: Block) -> str:
    cells = [
        (one["severity"], one["kind"], one["site"], f"{one['since']} to {one['until']}", one["value"], one["limit"])
        for one in block["alerts"]
    ]
    return _table(("severity", "alert", "where", f"{block['unit']}s", "value", "limit"), cells)


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [[*map(_text, heads)], ["---"] * len(heads), *([*map(_cell, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    return DASH if value is None else number(value) if isinstance(value, int | float) else _text(value)


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_text(text)}" for text in texts)


def _names(names: Sequence[str], more: int) -> str:
    left = more + len(names) - MOST_NAMES
    return ", ".join(map(_text, names[:MOST_NAMES])) + f" and {left} more" * (left > 0)


def _text(text: str) -> str:
    return markdown_text(visible(text))
