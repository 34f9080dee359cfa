"""The form of a model's input and of its answer."""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    """What a model takes and gives: samples of a ``kind`` and shape; so many ``answers``, for ``each`` position or one.

    ``kind`` is ``"vector"``, ``"image"``, ``"sequence"``, ``"tokens"`` or ``"graph"``; ``causal`` positions only look back.
    """

    kind: str
    shape: tuple[int, ...]
    answers: int
    vocabulary: int = 0
    each: bool = False
    causal: bool = False
