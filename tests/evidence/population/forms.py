"""The form of a model's input and of its answer."""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    """What a model takes and gives.

    Attributes:
        kind: ``"vector"``, ``"image"``, ``"sequence"``, ``"tokens"``, ``"graph"``.
        shape: Of one sample.
        vocabulary: Of tokens.
        answers: Numbers in an answer (classes).
        each: Whether there is an answer for each position.
        causal: Whether a position may only look back.
    """

    kind: str
    shape: tuple[int, ...]
    answers: int
    vocabulary: int = 0
    each: bool = False
    causal: bool = False
