"""Charts of many curves: what TensorBoard calls Custom Scalars."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lines:
    """A chart with a line for each tag that matches.

    Attributes:
        patterns: Regular expressions, matched from a tag's start.
    """

    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Band:
    """A chart with a line and a band around it."""

    value: str  # the line's tag
    lower: str  # the band's lower side
    upper: str  # its upper side


Chart = Lines | Band
Layout = Mapping[str, Mapping[str, Chart]]
"""Category to title to chart."""

_USUAL = {
    "loss": r"(?!features/|gradient_flow/|gradient_clip/|loss/(std|last|nonfinite_steps)$).*[Ll]oss.*",
    "learning rate": r"(lr-|lr$|learning_rate).*",
}

MOST_BANDS = 24
"""Layers that get a chart of their own."""
LONGEST_PATTERN = 4000
"""A browser asks for a pattern's curves in an address, and servers take no long ones."""


def training_charts(logged: Collection[str]) -> dict[str, Chart]:
    """Charts of what is logged under the usual names: losses and learning rates.

    Args:
        logged: The tags that were logged so far.
    """
    return {title: Lines((pattern,)) for title, pattern in _USUAL.items() if any(re.match(pattern, tag) for tag in logged)}


def by_statistic(prefix: str, statistics: Sequence[str], sites: Collection[str] = (), noun: str = "") -> dict[str, Chart]:
    """A chart per statistic with a line for each site.

    Args:
        prefix: What the tags begin with.
        statistics: What they end with.
        sites: Only these; none, or more than a pattern can name, for all but the alert counts.
        noun: What the sites are, for the titles.
    """
    pattern = any_of(sites) if sites else ""
    if not 0 < len(pattern) <= LONGEST_PATTERN:
        pattern = "(?!alerts/).+"
    return {
        f"{statistic} of {noun}" if noun else statistic: Lines((f"{re.escape(prefix)}/{pattern}/{re.escape(statistic)}$",))
        for statistic in statistics
    }


def of_model(prefix: str, statistics: Sequence[str]) -> dict[str, Chart]:
    """A chart per statistic with its median over the sites and its worst value; one of all shares, some of which may stay at 0."""
    shares = [statistic for statistic in statistics if statistic.endswith(("_fraction", "_rows"))]
    lines = {statistic: re.escape(statistic) for statistic in statistics if statistic not in shares}
    if shares:
        lines["shares"] = any_of(shares)
    return {
        f"{title}: median and worst": Lines((f"{re.escape(prefix)}/model/{pattern}_(median|worst)$",))
        for title, pattern in lines.items()
    }


def margins(prefix: str, sites: Sequence[str]) -> dict[str, Chart]:
    """A chart per site: the mean between the least and the largest; of sites spread evenly, where there are many."""
    step = -(-len(sites) // MOST_BANDS) or 1
    return {site: Band(f"{prefix}/{site}/mean", f"{prefix}/{site}/min", f"{prefix}/{site}/max") for site in sites[::step]}


def any_of(names: Collection[str]) -> str:
    """A pattern for exactly these names, which says once what several have before their last dot."""
    ends: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        parent, dot, last = name.rpartition(".")
        ends.setdefault(parent + dot, []).append(re.escape(last))
    return "(" + "|".join(f"{re.escape(parent)}({'|'.join(last)})" for parent, last in ends.items()) + ")"
