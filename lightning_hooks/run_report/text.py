"""Numbers, shares and durations as they are written in a report, and sentences without the names in them."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Set
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import known_kind
from lightning_hooks.trackers.console import visible

DASH = "\N{EN DASH}"


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
        return number(value)
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


def measured(alert: Alert) -> tuple[str, str]:
    """An alert's value and its limit in the unit of its kind; empty where there is nothing to measure."""
    known = known_kind(alert.kind)
    measures = "number" if known is None else known.measures
    if measures == "nothing":
        return "", ""
    share = measures == "share" or (alert.kind == "nonfinite" and 0 < alert.value < 1)
    return (percent(alert.value), percent(alert.threshold)) if share else (number(alert.value), number(alert.threshold))


LONGEST_NAME = 200
LONGEST_SENTENCE = 600
_WORD = re.compile(r"[\w./:-]*\w")
_OURS = {"loss", "validation loss", "training", "validation"}
"""Sites that no user named."""


def names_in(reports: Iterable[Any]) -> set[str]:
    """What reports name: sites, modules, parameters, optimizers, parts of a batch."""
    found: set[str] = set()
    for report in reports:
        for entry in dataclasses.fields(report):
            value = getattr(report, entry.name)
            parts = [value] if isinstance(value, str) else value if isinstance(value, dict | tuple) else ()
            found.update(part for part in parts if isinstance(part, str) and part)
        found.update(site for alert in report.alerts for site in (alert.site, *alert.also))
    return found


def in_a_line(text: str) -> str:
    """A text in one line of bounded length, of characters that are seen."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= LONGEST_SENTENCE else f"{text[:LONGEST_SENTENCE]} …"


class Sentences:
    """Takes names out of sentences."""

    def __init__(self, names: Set[str]) -> None:
        self._names = {name for name in names if not name.isdecimal() and name} - _OURS
        self._odd = sorted((name for name in self._names if not _WORD.fullmatch(name)), key=len, reverse=True)

    def are_name(self, text: str) -> bool:
        """Whether a text is one name and nothing else."""
        return text in self._names or " " not in text

    def without_names(self, text: str, names: list[str]) -> str:
        """The text with ``{0}``, ``{1}``, … where a name was, in printable characters and of bounded length.

        ``names`` gets the names, behind those of earlier texts.
        """
        text = text.replace("{", "(").replace("}", ")")

        def numbered(name: str) -> str:
            if name not in names:
                names.append(name)
            return f"{{{names.index(name)}}}"

        for name in self._odd:
            if (written := name.replace("{", "(").replace("}", ")")) in text:
                text = text.replace(written, numbered(name))

        def without(found: re.Match[str]) -> str:
            word = found[0]
            if word in self._names:
                return numbered(word)
            own = word.removeprefix("self.")  # as code of the model has it
            return f"self.{numbered(own)}" if own != word and own in self._names else word

        return in_a_line(_WORD.sub(without, text))
