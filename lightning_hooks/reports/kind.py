"""One kind of alert: what it is called and what to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of alert.

    Attributes:
        title: What is wrong, in a few plain words.
        advice: What to try, as short imperatives without a full stop, the most likely remedy first.
        measures: What an alert's value is: a ``share``, a ``number``, or ``nothing`` that is worth writing.
    """

    title: str
    advice: tuple[str, ...]
    measures: Literal["share", "number", "nothing"] = "number"
