"""What a layer or parameter is in its block: layers of one role are compared with each other, not queries with normalisations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

OTHER = "other"
"""The role of layers that are like no two others."""
ALIKE = 3
"""So many layers of one role make a line of their own."""


def role(name: str) -> str:
    """The role of a layer or parameter: what its name says after the number of its block, or its last part.

    Example:
        >>> [role(name) for name in ("h.3.attn.q.weight", "layer1.0.conv1", "head.bias", "net.4")]
        ['attn.q.weight', 'conv1', 'bias', '']
    """
    parts = name.split(".")
    for place, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[place + 1 :])
    return parts[-1]


def by_role(names: Sequence[str]) -> dict[str, list[int]]:
    """Role to the places of its layers, the roles with most layers first; roles of fewer than three share the name ``other``.

    Where no role has three, there are two: weights and biases.
    """
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found.setdefault(role(name), []).append(place)
    if not any(len(places) >= ALIKE for places in found.values()):
        found = {}
        for place, name in enumerate(names):
            found.setdefault("bias" if name.rpartition(".")[2] == "bias" else "", []).append(place)
        return dict(sorted(found.items(), key=lambda item: -len(item[1])))
    lines = {what: places for what, places in found.items() if len(places) >= ALIKE}
    rest = sorted(place for what, places in found.items() if what not in lines for place in places)
    ordered = dict(sorted(lines.items(), key=lambda item: -len(item[1])))
    return {**ordered, OTHER: rest} if rest else ordered


def relative_to_first(values: np.ndarray) -> np.ndarray:
    """The sizes in each row over the first of the row that is finite and not zero; NaN where there is none.

    Args:
        values: Shape ``(rows, columns)``.
    """
    sizes = np.where(np.isfinite(values), np.abs(values), np.nan)
    known = np.isfinite(sizes) & (sizes > 0)
    first = np.where(known.any(axis=1), sizes[np.arange(len(sizes)), known.argmax(axis=1)], np.nan)
    relative: np.ndarray = sizes / first[:, None]
    return relative
