"""What of a monitor's scalars is written: a budget of tags and bytes, spent on what matters most."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

MAX_TAGS = 1000
"""Tags that a monitor writes each epoch; a browser shows a few thousand before it crawls."""
MAX_BYTES = 45_000
"""What they may take in an event file each epoch: three monitors stay below 2 MB in 20 epochs."""
BYTES_BESIDE_THE_TAG = 11
"""A scalar in an event file is its tag and about these."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tags are written.

    Attributes:
        tags: These.
        statistics: The ranked statistics that are written, best first.
        left_out: Those that are not.
        every: 1, or n if there are so many sites that even the first statistic is written for every n-th only.
        wanted_bytes: What all of it would have taken.
    """

    tags: frozenset[str]
    statistics: tuple[str, ...]
    left_out: tuple[str, ...]
    every: int
    wanted_bytes: int


def statistic_of(tag: str) -> str:
    """The last part of a tag."""
    return tag.rpartition("/")[2]


def size_of(tags: Collection[str]) -> int:
    """About how many bytes a value under each of the tags takes in an event file."""
    return sum(len(tag if tag.isascii() else tag.encode("utf-8", "replace")) for tag in tags) + BYTES_BESIDE_THE_TAG * len(tags)


def choose(
    tags: Collection[str],
    ranking: Sequence[str],
    wanted: Collection[str] | None = None,
    always: Collection[str] = (),
    max_tags: int = MAX_TAGS,
    max_bytes: int = MAX_BYTES,
) -> Choice:
    """Choose the tags that are written: of all sites or of none, statistic by statistic.

    Args:
        tags: All tags, ``…/<statistic>``, those of a statistic in the order of the sites.
        ranking: The statistics, best first. Tags that end in none of these are always written.
        wanted: The statistics that the user asked for: exactly these, whatever they take; None for as many as fit.
        always: Tags that are written in any case.
        max_tags: The budget.
        max_bytes: The budget.
    """
    groups: dict[str, list[str]] = {statistic: [] for statistic in ranking}
    fixed: list[str] = []
    for tag in tags:
        groups.get(statistic_of(tag), fixed).append(tag)
    chosen = set(fixed).union(tag for tag in always if tag in tags)
    left_tags, left_bytes = max_tags - len(chosen), max_bytes - size_of(chosen)
    statistics: list[str] = []
    left_out: list[str] = []
    every = 1
    for statistic, group in groups.items():
        size = size_of(group)
        fits = _fits(group, left_tags, left_bytes)
        if not group:
            continue
        if wanted is None and not fits and not statistics and not left_out:  # too many sites for a single number of each
            every = next(n for n in range(2, len(group) + 2) if n > len(group) or _fits(group[::n], left_tags, left_bytes))
            group, fits = group[::every], True
            size = size_of(group)
        if fits if wanted is None else statistic in wanted:
            chosen.update(group)
            statistics.append(statistic)
            left_tags, left_bytes = left_tags - len(group), left_bytes - size
        else:
            left_out.append(statistic)
    return Choice(frozenset(chosen), tuple(statistics), tuple(left_out), every, size_of(tags))


def _fits(tags: Sequence[str], max_tags: int, max_bytes: int) -> bool:
    return len(tags) <= max_tags and size_of(tags) <= max_bytes
