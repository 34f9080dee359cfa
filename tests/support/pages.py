"""A page that holds its data: the data, and what is in it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from lightning_hooks.run_report.blocks import flat


def data_of(text: str) -> Any:
    """The data of a page: ``page`` and ``answers``."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def section_of(page: Any, key: str) -> list[Any]:
    """All blocks of a section, also those that are folded; none if there is no such section."""
    cards = (card for section in page["sections"] if section["id"] == key for card in section["cards"])
    return [block for card in cards for block in flat(card)]


def of_kind(blocks: list[Any], kind: str) -> list[Any]:
    """What blocks of a kind hold."""
    return [block[kind] for block in blocks if kind in block]


def texts(value: Any) -> Iterator[str]:
    """All texts and numbers in plain data, these in three digits."""
    if isinstance(value, str | int | float):
        yield value if isinstance(value, str) else f"{value:.3g}"
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from texts(inner)


def unpacked(heat: Any) -> np.ndarray:
    """The numbers of a heat map: shape (names, epochs)."""
    upper = np.frombuffer(base64.b64decode(heat["values"]), np.uint8).reshape(-1, 3)
    whole = np.concatenate([np.zeros((len(upper), 1), np.uint8), upper], axis=1)
    return whole.copy().view("<f4").reshape(len(heat["names"]), len(heat["epochs"]))
