"""What a page is made of: numbers as they are written, and blocks, plain JSON types; and the same as Markdown.

A *block* is a mapping with one of these keys: ``text`` (a sentence), ``title`` (``name`` says that it is a layer's), ``facts``,
``table``, ``chart`` (curves over the windows), ``rows`` (layers on a common scale), ``map`` (a heat map),
``alerts``, ``fold`` (with ``blocks``). A section has cards, and a card has blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import gravity, known_kind
from lightning_hooks.trackers.console import markdown_text, visible

DASH = "\N{EN DASH}"


def number(value: Any) -> str:
    """A number in three significant digits, in ASCII so that it can be pasted; a dash for none."""
    if value is None:
        return DASH
    if isinstance(value, int):
        return str(value)
    return "NaN" if math.isnan(value) else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share in percent; a dash for none."""
    if value is None or math.isnan(value):
        return number(value)
    shown = f"{100 * value:.3g}" if 0 < value < 0.0995 else f"{100 * value:.0f}"
    return f"{shown} %"


def measured(alert: Alert) -> tuple[str, str]:
    """An alert's value and its limit in the unit of its kind; empty where there is nothing to measure."""
    known = known_kind(alert.kind)
    measures = "number" if known is None else known.measures
    if measures == "nothing":
        return "", ""
    share = measures == "share" or (alert.kind == "nonfinite" and 0 < alert.value < 1)
    return (percent(alert.value), percent(alert.threshold)) if share else (number(alert.value), number(alert.threshold))


Block = dict[str, Any]
Card = list[Block]
MOST_LINES = 5  # curves of a chart: as many as there are colours
SHOWN_ROWS = 40  # of more rows those with an alert come first, and the page folds those beyond


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers in four digits; None for those that are not finite."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


def chart(title: str, epochs: Sequence[int], unit: str, lines: Sequence[Mapping[str, Any]], **how: Any) -> Block:
    """Curves over the windows, each a :func:`line`; ``kind`` is ``log``, ``linear`` or ``share``, and by the numbers without it."""
    return {"chart": {"title": title, "epochs": list(epochs), "unit": unit, "lines": list(lines), **how}}


def line(label: str, values: Iterable[float], top: Iterable[float] | None = None, **how: Any) -> Block:
    """A curve; ``top`` is the upper edge of a band above it, a ``dashed`` one is a limit, ``color`` is one of the style's."""
    return {"label": label, "values": numbers(values), **({} if top is None else {"top": numbers(top)}), **how}


def row(name: str, value: float, low: float | None = None, high: float | None = None, **more: str) -> Block:
    """A line of :func:`rows`: a value, the ends of a band; ``severity``, ``note`` and ``title``."""
    ends = {key: numbers([end])[0] for key, end in (("low", low), ("high", high)) if end is not None}
    return {"name": name, "value": numbers([value])[0], **ends, **{key: text for key, text in more.items() if text}}


def rows(
    lines: Sequence[Block], what: str, share: bool = False, shades: Sequence[float] = (), limits: Sequence[float] = ()
) -> Block:
    """Layers on a common scale: logarithmic, in whole decades that hold ``shades`` too, or from 0 to 1, with bars.

    Of many lines, those with an alert come first.
    """
    folds = len(lines) > SHOWN_ROWS  # a sort keeps the model's order among equals
    ordered = sorted(lines, key=lambda line: gravity(line.get("severity", "")) if folds else 0)
    drawn = {"lines": ordered, "what": what, "share": share, "shades": list(shades)}
    return {"rows": {**drawn, "limits": [limit for limit in limits if limit > 0]}}


def table(heads: Sequence[str], cells: Iterable[Sequence[Any]]) -> Block:
    """Rows of texts and numbers; the first column names what a row is of."""
    return {"table": {"heads": list(heads), "rows": [[cell(value) for value in found] for found in cells]}}


def cell(value: Any) -> Any:
    """A value as JSON can say it: a number that is not finite becomes its text."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else number(value)
    return value if value is None or isinstance(value, int) else str(value)


def fold(summary: str, blocks: Sequence[Block], is_open: bool = False) -> Block:
    """Blocks that can be folded, and are at first, unless they are open."""
    return {"fold": summary, "blocks": list(blocks), "open": is_open}


def section(key: str, title: str, cards: Iterable[Card]) -> dict[str, Any]:
    """A section; one without cards is shown nowhere."""
    return {"id": key, "title": title, "cards": [card for card in cards if card]}


def flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """The blocks, and those that are folded in them."""
    for block in blocks:
        yield from flat(block["blocks"]) if "fold" in block else [block]


SIGNS = {"failed": "✖", "critical": "✖", "warning": "▲", "info": "●", "healthy": "✔", "unknown": "?"}
SHOWN_EPOCHS = 10
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
        parts = [part for card in cards if _says(card) for part in map(_block, card) if part]
        if parts:
            yield from [*[f"## {_text(section['title'])}"] * bool(section["title"]), *parts]


def _says(card: Card) -> bool:
    others = [block for block in card if not any(key in block for key in PICTURES)]
    return len(others) == len(card) or any(set(block) != {"text"} for block in others)


def _problem(problem: Mapping[str, Any]) -> Iterator[str]:
    state = problem["severity"] if problem["lasts"] else "passed"
    sure = "" if problem["probability"] is None else f", {problem['probability']:.0%} likely"
    yield f"## {SIGNS.get(problem['severity'], '●')} {_text(problem['headline'].rstrip('.'))} ({_text(state)}{sure})"
    yield f"{_text(problem['title'])} at {_text(problem['where'])}, {_text(problem['when'])}. {_text(problem['seen_as'])}".strip()
    if problem["advice"]:
        yield from ("**What to try:**", _list(problem["advice"]))
    if problem["rules"]:
        yield f"Its rules and their limits: `{problem['rules']}`. {_text(problem['record'])}".strip()


def _block(block: Block) -> str:
    return next((write(block) for key, write in _WRITERS.items() if key in block), "")


def _chart(drawn: Mapping[str, Any]) -> str:
    epochs, lines = drawn["epochs"], [line for line in drawn["lines"] if not line.get("dashed")]
    last, shown = len(epochs) - 1, min(len(epochs), SHOWN_EPOCHS)
    places = [round(at * last / max(shown - 1, 1)) for at in range(shown)]
    cells = [[epochs[at], *(line["values"][at] for line in lines)] for at in places]
    title = f"{_text(drawn['title'])}:\n\n" if drawn["title"] else ""
    return title + _table([drawn["unit"], *(line["label"] for line in lines)], cells)


def _alerts(block: Block) -> str:
    return _table(
        ("severity", "alert", "where", f"{block['unit']}s", "value", "limit"),
        (
            (one["severity"], one["kind"], one["site"], f"{one['since']} to {one['until']}", one["value"], one["limit"])
            for one in block["alerts"]
        ),
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [[*map(_text, heads)], ["---"] * len(heads), *([*map(_cell, row)] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    return DASH if value is None else number(value) if isinstance(value, int | float) else _text(value)


def _list(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_text(text)}" for text in texts)


def _text(text: str) -> str:
    return markdown_text(visible(text))


# How a block is written, by the first of these keys that it has; pictures are left out.
_WRITERS: dict[str, Callable[[Block], str]] = {
    "text": lambda block: _text(block["text"]),
    "title": lambda block: f"{_text(block['title'])}:",
    "facts": lambda block: _list(f"{what}: {value}" for what, value in block["facts"]),
    "table": lambda block: _table(**block["table"]),
    "alerts": _alerts,
    "chart": lambda block: _chart(block["chart"]),
}
