"""What a kind of alert is declared by, and the registry of kinds, which the files of rules fill."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from lightning_hooks.declare.hypothesis import Hypothesis

Severity = Literal["info", "warning", "critical"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From what is worth knowing to what ends a training."""
REARM = 2
"""Reports without an alert after which it is over."""

FORWARD, BACKWARD, STEP = 0, 1, 2
"""The passes of a training batch, in order."""


def gravity(severity: str) -> int:
    """A sort key for severities: 0 for critical, 1 for warning, 2 for info, 3 for what is none of these."""
    return len(SEVERITIES) - 1 - SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


@dataclass(slots=True, eq=False)
class Node:
    """An alert among those of one window, and when in a training batch it happens."""

    kind: str
    site: str
    value: float
    severity: Severity
    report: int  # the place of its report
    number: int  # its number in the order of the reports
    place: float  # the site's place in the order of calls; of a parameter that of its module; infinite if unknown
    passing: int  # FORWARD, BACKWARD or STEP
    batch: float = math.inf  # of what is not finite, the batch at which it first was not; infinite if unknown
    began: float = math.inf  # the batch at which the alert began; infinite if unknown
    every: int = 1  # every so many batches its site is sampled
    held: bool = False  # whether it was raised before and lasts
    cause: Node | None = None  # what it is a consequence of
    consequences: list[Node] = field(default_factory=list)

    @property
    def serious(self) -> bool:
        """Whether it is more than an info, which can be the cause of infos only."""
        return self.severity != "info"

    @property
    def whole(self) -> bool:
        """Whether the module lets nothing through."""
        return self.kind == "constant" or self.value >= 1.0

    @property
    def moment(self) -> tuple[float, int, float]:
        """When it happened: batch, pass, and place along the pass; backward goes from the last module to the first."""
        return self.batch, self.passing, self.place if self.passing == FORWARD else -self.place


Link = Callable[[Node, Node], bool]
"""Whether the first alert is a consequence of the second."""
Spread = Callable[[Sequence[Node], Sequence[float]], None]
"""Sets the cause of those alerts of one kind that are consequences of another one of them, given the places of the parameters that
have no such alert, in order."""


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
        rank: Its place in the order of causes: of two problems without a link, the one of the lower rank comes first.
        severities: How severe its alerts are, the usual one first; with fields of rules as in ``formula``.
        about: What its alerts are about: a ``window``; one training ``batch``, whose evidence may be kept; or the batch at which a
            value was ``nonfinite`` first.
        measures: What an alert's value is: a ``share``, a ``number``, or ``nothing`` that is worth writing.
        follows: The kinds that it can be a consequence of, each with the condition; what is most likely comes first.
        causes: More consequences, other than those that say so themselves by ``follows``; each with the condition.
        stops_learning: Whether a training may learn nothing because of it.
        follows_any: Which other kinds it can be a consequence of, wherever the two are; None for no more than ``follows`` names.
        spreads: How it spreads from site to site; None if its alerts are independent of one another.
        urgency: Of problems that are equally severe, the most urgent is the headline.
        limit: The threshold that figures draw; 0 for none.
        quotes_sample: Whether its value and its text hold a value of a sample, such as a token's id.
        hypotheses: What may have caused it, judged by what is known of the training when it is raised.
    """

    name: str
    title: str
    _: KW_ONLY
    group: str
    meaning: str
    formula: str
    advice: tuple[str, ...]
    rank: float
    severities: str = "warning"
    about: Literal["window", "batch", "nonfinite"] = "window"
    measures: Literal["share", "number", "nothing"] = "number"
    follows: Mapping[str, Link] = field(default_factory=dict)
    causes: Mapping[str, Link] = field(default_factory=dict)
    stops_learning: bool = False
    follows_any: Callable[[Kind], bool] | None = None
    spreads: Spread | None = None
    urgency: int = 0
    limit: float = 0.0
    quotes_sample: bool = False
    hypotheses: tuple[Hypothesis, ...] = ()


KINDS: dict[str, Kind] = {}
"""The kinds of the built-in rules, in the order of causes. :mod:`lightning_hooks.alerts` fills it from the files of rules."""


class ShownKind(NamedTuple):
    """What a reader of a run's file needs of a kind."""

    measures: str  # as of :class:`Kind`
    urgency: int  # as of :class:`Kind`
    limit: float  # as of :class:`Kind`


def known_kind(kind: str) -> ShownKind | None:
    """What is known of a kind, also where its declaration is not imported, as without torch; None for a user's own."""
    known = KINDS.get(kind)
    return _shown_kinds().get(kind) if known is None else ShownKind(known.measures, known.urgency, known.limit)


@cache
def _shown_kinds() -> dict[str, ShownKind]:
    text = files("lightning_hooks.declare").joinpath("kinds.json").read_text(encoding="utf-8")
    return {name: ShownKind(*values) for name, values in json.loads(text).items()}


def kind_of(name: str) -> Kind:
    """A kind by its name; for one of a user's own, which no rule here raises, what its name says."""
    title = name.replace("_", " ").capitalize()
    return KINDS.get(name) or Kind(name, title, group="", meaning="", formula="", advice=(), rank=math.inf)


def inside_a_sentence(title: str) -> str:
    """A title for the middle of a sentence."""
    first, *_ = title.split(" ")
    return title if first[1:] != first[1:].lower() else title[:1].lower() + title[1:]  # NaN stays as it is


def always(_: Node, __: Node) -> bool:
    """Wherever the two are."""
    return True


def at_the_same_site(effect: Node, cause: Node) -> bool:
    """Both at one site."""
    return effect.site == cause.site


def downstream(effect: Node, cause: Node) -> bool:
    """The effect comes later in the forward pass."""
    return effect.place > cause.place


def upstream(effect: Node, cause: Node) -> bool:
    """The effect comes earlier in the forward pass, or at the same place: the gradient reaches it later."""
    return effect.place <= cause.place


def of_whole(_: Node, cause: Node) -> bool:
    """The cause lets nothing through."""
    return cause.whole


def downstream_of_whole(effect: Node, cause: Node) -> bool:
    """The effect comes later in the forward pass than what lets nothing through."""
    return cause.whole and downstream(effect, cause)


def not_later(effect: Node, cause: Node) -> bool:
    """The cause began at the same batch or before; where that of the cause is not known, it may have."""
    return cause.began <= effect.began or cause.began == float("inf")


def forward(node: Node) -> tuple[float, int]:
    """A sort key: along the forward pass."""
    return node.place, node.number


def backward(node: Node) -> tuple[int, float, int]:
    """A sort key: along the backward pass."""
    return node.passing, -node.place, node.number


def from_first(key: Callable[[Node], Any]) -> Spread:
    """Over the rest of the model from one site: that of an alert which lasts from before, else what comes first by a sort key."""

    def spread(nodes: Sequence[Node], _: Sequence[float]) -> None:
        first, *others = sorted(nodes, key=lambda node: (not node.held, key(node)))
        for node in others:
            node.cause = first

    return spread


def in_a_row(nodes: Sequence[Node], unaffected: Sequence[float]) -> None:
    """From parameter to parameter, up to the one nearest the loss, unless one in between is unaffected."""
    head, *others = sorted(nodes, key=lambda node: (node.place, node.number), reverse=True)
    for node in others:
        if bisect_left(unaffected, head.place) > bisect_right(unaffected, node.place):
            head = node
        else:
            node.cause = head
