"""HTML that is escaped by construction: text becomes markup through :func:`tag` only."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from typing import Any

from lightning_hooks.trackers.console import visible

DASH = "\N{EN DASH}"
VOID = frozenset({"br", "hr", "img", "meta", "link"})


class Markup(str):
    """HTML as it is to be, with everything in it escaped."""

    __slots__ = ()


def tag(element: str, *children: Any, **attributes: Any) -> Markup:
    """Return an element.

    Args:
        element: Its name.
        children: Texts, which are escaped; :class:`Markup`, which is not; sequences of both. None is left out.
        attributes: Escaped too; ``class_`` for ``class``, ``data_x`` for ``data-x``; None and False are left out, True is
            written without a value.
    """
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(visible(str(value)), quote=True)}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if element in VOID:
        return Markup(f"<{element}{written}>")
    return Markup(f"<{element}{written}>{joined(children)}</{element}>")


def joined(children: Iterable[Any]) -> Markup:
    """Return children one after the other, texts escaped."""
    parts = []
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (list, tuple)):
            parts.append(joined(child))
        else:
            parts.append(Markup(html.escape(visible(str(child)), quote=False)))
    return Markup("".join(parts))


def number(value: Any) -> str:
    """A number in three significant digits, in ASCII so that it can be pasted; a dash for none."""
    if value is None:
        return DASH
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "NaN"
    return f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share in percent; a dash for none."""
    if value is None or math.isnan(value):
        return number(None if value is None else value)
    shown = f"{100 * value:.3g}" if 0 < value < 0.0995 else f"{100 * value:.0f}"
    return f"{shown} %"


def seconds(value: float) -> str:
    """A duration in the unit that suits it."""
    if math.isnan(value):
        return DASH
    if value < 1:
        return f"{1000 * value:.3g} ms"
    if value < 120:
        return f"{value:.3g} s"
    return f"{value / 60:.3g} min" if value < 7200 else f"{value / 3600:.3g} h"
