"""The causes that alerts may have, what speaks for and against them, and what to do."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.trackers.console import some

Setting = float | int | str | None  # what a remedy sets: a number, or a word

_PHRASES = {
    "set": "Set {target} to {to}",
    "fill": "Fill {target} with {to}",
    "scale": "Multiply {target} by {to}",
    "initialise": "Initialise {target} again",
    "add": "Add {target} to {to}",
    "remove": "Remove {target}",
    "replace": "Replace {target} by {to}",
    "insert": "Put {to} before {target}",
    "call": "Call {target}",
    "check": "Check {target}",
}
OPS = tuple(_PHRASES)  # what a remedy does
MOST_NAMED = 5  # layers or parameters that a sentence names; a program finds all of them in ``target``


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about a cause.

    Attributes:
        op: What is done, one of :data:`OPS`.
        target: To what: a parameter (``net.conv2.bias``) or module of the model, ``optimizer.lr``, ``trainer.gradient_clip_val``,
            ``scheduler``, ``loss``, a tensor of the batch (``batch[0]``), or something in the code, in words.
        from_: What it is now; None where it is no value. ``from`` in JSON.
        to: What it is to be; None where it is no value.
        precondition: What holds now and makes it possible.
        effect: What is to be seen if it is the cure.
        steps: Optimizer steps after which that must show; None where it is not known.
        code: The line of code that does it.
    """

    op: str
    target: str
    from_: Setting = None
    to: Setting = None
    precondition: str = ""
    effect: str = ""
    steps: int | None = None
    code: str = ""

    @property
    def possible(self) -> bool:
        """Whether it names finite numbers only, and multiplies nothing by 0."""
        numbers = [value for value in (self.from_, self.to) if isinstance(value, float)]
        in_code = re.search(r"(?<![\w.])(inf|nan)\b", self.code) is None
        return in_code and all(map(math.isfinite, numbers)) and not (self.op == "scale" and self.to == 0)

    @property
    def text(self) -> str:
        """A short imperative, with the line of code."""
        names = self.target.split(", ")
        many = len(names) > MOST_NAMED and not any(" " in name for name in names)
        target = some(names, 3) if many else self.target
        phrase = _PHRASES.get(self.op, f"{self.op} {{target}}").format(target=target, to=written(self.to))
        now = f" (it is {written(self.from_)})" if self.op == "set" and self.from_ is not None else ""
        return f"{phrase}{now}{f': {self.code}' * bool(self.code)}"


def written(value: Setting) -> str:
    """A setting in a sentence, or in code."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


SOON = 50  # optimizer steps after which a cure of the step size shows


def replace(target: str, to: str, effect: str = "", code: str = "", steps: int = SOON) -> Remedy:
    """Replace something by something else, both in words."""
    return Remedy("replace", target, to=to, effect=effect, steps=steps, code=code)


def rounded(value: float) -> float:
    """A value to one significant digit."""
    return float(f"{value:.0e}")


def in_code(name: str) -> str:
    """A module or parameter as an attribute of the model in its own ``__init__``: ``self.net[0].bias``; ``self`` for the model."""
    parts = [] if name == "the model" else name.split(".")
    return "self" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts)


PROOF, STRONG, SOME, SLIGHT, SHOWN, AGAINST, EXCLUDES = "proof", "strong", "some", "slight", "shown", "against", "excludes"
# How much a piece of evidence says: it is wrong in itself; it is rare without this cause; it is more frequent with it; it is a
# detail; nothing; it is rare with this cause; it is next to impossible with it. What each adds to the log-odds is measured.
STRENGTHS = PROOF, STRONG, SOME, SLIGHT, SHOWN, AGAINST, EXCLUDES
DECISIVE = 0.4  # the probability from which on a cause is named first


@dataclass(frozen=True, slots=True)
class Cause:
    """A possible cause of an alert.

    Attributes:
        name: The name of the cause, such as ``rate_too_high``.
        statement: It in a sentence, with its numbers.
        probability: How likely it is if there is a problem, from 0 to 1; from 0.4 on it is named first. NaN before it is judged.
        evidence_for: What speaks for it, as clauses. ``for`` in ``health.json``.
        evidence_against: What speaks against it. ``against`` in ``health.json``.
        remedies: What to do, the most likely first.
        strengths: How much each piece of evidence says, of :data:`STRENGTHS`.
    """

    name: str
    statement: str
    probability: float = math.nan
    evidence_for: tuple[str, ...] = ()
    evidence_against: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    strengths: tuple[str, ...] = ()

    @property
    def decisive(self) -> bool:
        """Whether it is named first."""
        return self.probability >= DECISIVE


@dataclass(frozen=True, slots=True)
class PossibleCause:
    """A cause that alerts of a kind may have.

    Attributes:
        name: Its name.
        title: What it supposes, as a clause.
        remedies: What is done about it, in words, for the documentation.
        judge: Given an alert and the facts, the cause with its evidence; None where nothing speaks for it.
    """

    name: str
    title: str
    remedies: tuple[str, ...]
    judge: Callable[[Any, Any], Cause | None]


class CauseEvidence:
    """Collects what speaks for and against a cause."""

    def __init__(self) -> None:
        self.strengths: list[str] = []
        self.pros: list[str] = []
        self.cons: list[str] = []

    def add(self, holds: bool, strength: str, text: str) -> None:
        """Enter something that speaks for it or against it, of a strength of :data:`STRENGTHS`, if it holds."""
        if holds:
            self.strengths.append(strength)
            (self.cons if strength in (AGAINST, EXCLUDES) else self.pros).append(text)

    def add_all(self, *evidence: tuple[bool, str, str]) -> None:
        """Enter several pieces, each as :meth:`add` does."""
        for holds, strength, text in evidence:
            self.add(holds, strength, text)


Judgement = tuple[str, Sequence[Remedy]] | None  # a cause in a sentence, and its remedies; None where it does not apply


def possible_cause(*in_words: str) -> Callable[[Callable[[Any, Any, CauseEvidence], Judgement]], PossibleCause]:
    """Declare a cause by the function that judges it: its docstring says what it supposes, and its name is the cause's.

    The function is given an alert, the facts, and where to enter the evidence. There is no cause where nothing speaks for it, and
    no remedy that is not possible.

    Args:
        *in_words: What is done about it.
    """

    def declare(function: Callable[[Any, Any, CauseEvidence], Judgement]) -> PossibleCause:
        name = function.__name__

        def judge(alert: Any, facts: Any) -> Cause | None:
            found = CauseEvidence()
            stated = function(alert, facts, found)
            if stated is None or not found.pros:
                return None
            remedies = tuple(remedy for remedy in stated[1] if remedy.possible)
            for_, against, strengths = map(tuple, (found.pros, found.cons, found.strengths))
            return Cause(name, stated[0], math.nan, for_, against, remedies, strengths)

        title = (inspect.getdoc(function) or name).partition("\n")[0].rstrip(".")
        return PossibleCause(name, title[:1].lower() + title[1:], in_words, judge)

    return declare
