"""What a kind of alert is declared by, and the registry of kinds, which the files of rules fill."""

from __future__ import annotations

import json
from dataclasses import KW_ONLY, dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from lightning_hooks.declare.cause import PossibleCause

Severity = Literal["info", "warning", "critical"]

ALWAYS = "always"  # as ``inconclusive``
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")  # least severe first
REARM = 2  # reports without an alert after which it is over

FORWARD, BACKWARD, STEP = 0, 1, 2  # the passes of a training batch, in order


def gravity(severity: str) -> int:
    """A sort key for severities: 0 for critical, 1 for warning, 2 for info, 3 for what is none of these."""
    return len(SEVERITIES) - 1 - SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


States = Literal["fact", "symptom", "outcome", "own"]
# From what explains others to what is explained by them; then what a rule of the user's finds
STATES: tuple[States, ...] = ("fact", "symptom", "outcome", "own")


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of alert.

    Attributes:
        name: Its name, as in ``rules=['-dead']``.
        title: What is wrong, in a few plain words.
        group: Where in a training a user looks for it: a heading of the documentation's table.
        meaning: What it means, in a few sentences of Markdown.
        formula: When an alert is raised. ``{Dead.threshold}`` stands for the default of that field of that rule.
        advice: What to try, as short imperatives without a full stop, the most likely remedy first.
        states: What it is when one is found: a ``fact``, which is wrong in itself; a ``symptom``, which may do no harm and has a
            cause elsewhere; an ``outcome``, the course of the loss; or ``own``, what a rule of the user's found.
        inconclusive: When a finding is only an info, with fields of rules as in ``formula``; empty: never, :data:`ALWAYS`: always.
        critical: The value from which an alert is critical, as numbers are lost or nothing learns any more; None: never. Below it,
            an alert is a warning.
        about: What its alerts are about: a ``window``; one training ``batch``, whose evidence may be kept; or the batch at which a
            value was ``nonfinite`` first.
        measures: What an alert's value is: a ``share``, a ``number``, or ``nothing`` that is worth writing.
        limit: The threshold that figures draw; 0 for none.
        quotes_sample: Whether its value and its text hold a value of a sample, such as a token's id.
        causes: What may have caused it, judged by what is known of the training when it is raised.
    """

    name: str
    title: str
    _: KW_ONLY
    group: str
    meaning: str
    formula: str
    advice: tuple[str, ...]
    states: States = "fact"
    inconclusive: str = ""
    critical: float | None = None
    about: Literal["window", "batch", "nonfinite"] = "window"
    measures: Literal["share", "number", "nothing"] = "number"
    limit: float = 0.0
    quotes_sample: bool = False
    causes: tuple[PossibleCause, ...] = ()

    def severity_of(self, value: float) -> Severity:
        """The severity of a conclusive finding with this value."""
        return "warning" if self.critical is None or value < self.critical else "critical"


KINDS: dict[str, Kind] = {}  # of the built-in rules, in the order of causes; the package of alerts fills it from their files


class ShownKind(NamedTuple):
    """What a reader of a run's file needs of a kind."""

    measures: str  # as of :class:`Kind`
    limit: float  # as of :class:`Kind`


def known_kind(kind: str) -> ShownKind | None:
    """What is known of a kind, also where its declaration is not imported, as without torch; None for a user's own."""
    known = KINDS.get(kind)
    return _shown_kinds().get(kind) if known is None else ShownKind(known.measures, known.limit)


@cache
def _shown_kinds() -> dict[str, ShownKind]:
    text = files("lightning_hooks.declare").joinpath("kinds.json").read_text(encoding="utf-8")
    return {name: ShownKind(*values) for name, values in json.loads(text).items()}


def kind_of(name: str) -> Kind:
    """A kind by its name; for one of a user's own, which no rule here raises, what its name says."""
    title = name.replace("_", " ").capitalize()
    return KINDS.get(name) or Kind(name, title, group="", meaning="", formula="", advice=(), states="own")


def inside_a_sentence(title: str) -> str:
    """A title for the middle of a sentence."""
    first, *_ = title.split(" ")
    return title if first[1:] != first[1:].lower() else title[:1].lower() + title[1:]  # NaN stays as it is


def capital(text: str) -> str:
    """A text that begins a sentence; one that begins with a name, such as ``conv2.bias``, as it is."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].rstrip(":;,.").isalpha() else text
