"""What a page is made of: plain JSON types that the browser draws and that Markdown writes.

A *block* is a mapping with one of these keys: ``text`` (a sentence), ``title`` (``name`` says that it is a layer's), ``facts``,
``table``, ``names``, ``code``, ``chart`` (curves over the windows), ``rows`` (layers on a common scale), ``map`` (a heat map),
``alerts``, ``fold`` (with ``blocks``). A section has cards, and a card has blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lightning_hooks.declare.kinds import gravity
from lightning_hooks.run_report.text import number

Block = dict[str, Any]
Card = list[Block]
MOST_LINES = 5
"""Curves of a chart: as many as there are colours."""
SHOWN_ROWS = 40
"""Of more rows those with an alert come first, and the page folds those beyond."""


def numbers(values: Iterable[float]) -> list[float | None]:
    """Numbers in four digits; None for those that are not finite."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


def chart(title: str, epochs: Sequence[int], unit: str, lines: Sequence[Mapping[str, Any]], **how: Any) -> Block:
    """Curves over the windows, each a :func:`line`; ``kind`` is ``log``, ``linear`` or ``share``, and by the numbers without it."""
    return {"chart": {"title": title, "epochs": list(epochs), "unit": unit, "lines": list(lines), **how}}


def line(label: str, values: Iterable[float], top: Iterable[float] | None = None, **how: Any) -> Block:
    """A curve; ``top`` is the upper edge of a band above it, a ``dashed`` one is a limit, ``color`` is one of the style's."""
    return {"label": label, "values": numbers(values), **({} if top is None else {"top": numbers(top)}), **how}


def row(
    name: str, value: float, low: float | None = None, high: float | None = None, other: float | None = None, **more: str
) -> Block:
    """A line of :func:`rows`: a value, the ends of a band, another run's value; ``severity``, ``note``, ``shown`` and ``title``."""
    values = {"value": value, "low": low, "high": high, "other": other}
    plain = {key: numbers([found])[0] for key, found in values.items() if found is not None}
    return {"name": name, **plain, **{key: text for key, text in more.items() if text}}


def rows(
    lines: Sequence[Block], what: str, share: bool = False, shades: Sequence[float] = (), limits: Sequence[float] = ()
) -> Block:
    """Layers on a common scale: logarithmic, in whole decades that hold ``shades`` too, or from 0 to 1, with bars.

    Of many lines, those with an alert come first.
    """
    folds = len(lines) > SHOWN_ROWS  # a sort keeps the model's order among equals
    ordered = sorted(lines, key=lambda line: gravity(line.get("severity", "")) if folds else 0)
    reached = [limit for limit in limits if limit > 0]
    return {"rows": {"lines": ordered, "what": what, "share": share, "shades": list(shades), "limits": reached}}


def table(heads: Sequence[str], cells: Iterable[Sequence[Any]]) -> Block:
    """Rows of texts and numbers; the first column names what a row is of."""
    return {"table": {"heads": list(heads), "rows": [[cell(value) for value in found] for found in cells]}}


def cell(value: Any) -> Any:
    """A value as JSON can say it: a number that is not finite becomes its text."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else number(value)
    return value if value is None or isinstance(value, int) else str(value)


def named(title: str, names: Sequence[str], most: int = 60) -> Block:
    """Names under a heading, those beyond ``most`` counted."""
    return {"title": title, "names": list(names[:most]), "more": max(len(names) - most, 0)}


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
