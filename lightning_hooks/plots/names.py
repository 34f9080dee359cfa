"""Names of layers on an axis: how they are shortened, and which are shown where there is no room for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

MOST_LABELS = 80
"""Up to so many layers are named each; above, blocks of layers are."""

MOST_BLOCKS = 60
FEWEST_BLOCKS = 6
LONGEST = 34


def shortened(name: str, longest: int = LONGEST) -> str:
    """A name that fits: its middle is left out, since its end matters most."""
    if len(name) <= longest:
        return name
    head = longest // 3
    return f"{name[:head]}…{name[len(name) - (longest - head - 1) :]}"


def shared_prefix(names: Sequence[str]) -> str:
    """The leading components that all names share and that name none of them, with the dot: ``"model.net."``."""
    if len(names) < 2:
        return ""
    parts = [name.split(".")[:-1] for name in names]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join([*shared, ""]) if shared else ""


@dataclass(frozen=True, slots=True)
class Labels:
    """What is written along an axis of layers."""

    positions: tuple[float, ...]  # where, in units of one layer; a block's label is at its middle
    texts: tuple[str, ...]  # what
    edges: tuple[float, ...]  # the borders between blocks; empty where every layer has its label
    prefix: str  # what was left out at the beginning of all names


def labels(names: Sequence[str]) -> Labels:
    """Choose the labels of an axis: all layers, or blocks of them (``encoder.layers.3``), or every k-th."""
    prefix = shared_prefix(names)
    bare = [name[len(prefix) :] for name in names]
    if len(bare) <= MOST_LABELS:
        return Labels(tuple(range(len(bare))), tuple(map(shortened, bare)), (), prefix)
    blocks = _blocks(bare)
    if blocks:
        ends = [0]
        for _, size in blocks:
            ends.append(ends[-1] + size)
        middles = tuple((start + end - 1) / 2 for start, end in pairwise(ends))
        return Labels(middles, tuple(shortened(text) for text, _ in blocks), tuple(end - 0.5 for end in ends), prefix)
    step = next(n for n in round_numbers() if len(bare) / n <= MOST_BLOCKS)
    chosen = range(0, len(bare), step)
    return Labels(tuple(chosen), tuple(shortened(bare[i]) for i in chosen), (), prefix)


def round_numbers() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, …: steps that people count in."""
    base = 1
    while True:
        yield from (base, 2 * base, 5 * base)
        base *= 10


def _blocks(names: Sequence[str]) -> list[tuple[str, int]]:
    """(prefix, size) of runs of names that share their first components: the finest that has room; none if that says little."""
    parts = [name.split(".") for name in names]
    found: list[tuple[str, int]] = []
    for depth in range(1, max(map(len, parts)) + 1):
        runs = [(".".join(key), len(list(run))) for key, run in groupby(parts, key=lambda part: part[:depth])]
        if len(runs) > MOST_BLOCKS:
            break
        found = runs
    return found if len(found) >= FEWEST_BLOCKS else []
