"""Sentences without the names in them, which a reader that follows instructions could take for one."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Set
from typing import Any

from lightning_hooks.trackers.console import visible

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
            if isinstance(value, dict):
                found.update(key for key in value if isinstance(key, str))
            elif isinstance(value, str) and value:
                found.add(value)
            elif isinstance(value, tuple):
                found.update(part for part in value if isinstance(part, str))
        found.update(site for alert in report.alerts for site in (alert.site, *alert.also))
    return found


def in_a_line(text: str) -> str:
    """A text in one line of bounded length, of characters that are seen."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= LONGEST_SENTENCE else f"{text[:LONGEST_SENTENCE]} …"


class Sentences:
    """Takes names out of sentences.

    Args:
        names: The names.
    """

    def __init__(self, names: Set[str]) -> None:
        self._names = {name for name in names if not name.isdecimal() and name} - _OURS
        odd = {name for name in self._names if not _WORD.fullmatch(name)}
        self._odd = sorted(odd, key=len, reverse=True)

    def are_name(self, text: str) -> bool:
        """Whether a text is one name and nothing else."""
        return text in self._names or " " not in text

    def without_names(self, text: str, names: list[str]) -> str:
        """The text with ``{0}``, ``{1}``, … where a name was, in printable characters and of bounded length.

        Args:
            text: The text.
            names: Gets the names, those of earlier texts before them: ``{0}`` is the first.
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
