"""The values of a report by tag."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

Worst = Callable[[str, Sequence[float], float], float]


def stat_scalars(prefix: str, names: Collection[str], found: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, float]:
    """Name statistics as ``prefix/<name>/<stat>``; NaN where there are none.

    Args:
        prefix: The monitor's.
        names: The sites, in order.
        found: Site to its statistics, where there are some.
        wanted: Which statistics.
    """
    tags, nothing = _tags(prefix, tuple(names), tuple(wanted)), SimpleNamespace(**dict.fromkeys(wanted))
    stats = [found.get(name, nothing) for name in names]
    rows = zip(*(map(attrgetter(stat), stats) for stat in wanted), strict=True)
    values = [math.nan if value is None else float(value) for row in rows for value in row]
    return dict(zip(tags, values, strict=True))


@lru_cache(maxsize=16)
def _tags(prefix: str, names: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The same ones in each window: of a large model they are thousands."""
    return tuple([f"{prefix}/{name}/{stat}" for name in names for stat in wanted])


def model_scalars(prefix: str, found: Iterable[Any], wanted: Sequence[str], worst: Worst | None = None) -> dict[str, float]:
    """The median over sites and the worst site of each statistic: ``prefix/model/<stat>_median`` and ``…_worst``.

    The worst value is the largest of a share (``…_fraction``) or a count (``…_steps``), of a mean the one farthest from 0, and
    of any other statistic the one farthest from the median on a logarithmic scale (a value of 0 is infinitely far).

    Args:
        prefix: The monitor's.
        found: The statistics of each site.
        wanted: Which statistics.
        worst: Given a statistic, its values and their median, the worst one; None for the one above.

    Returns:
        Tag to value; NaN where no site has a finite value.
    """
    entries = list(found)
    scalars: dict[str, float] = {}
    for stat in wanted:
        values = [float(value) for value in map(attrgetter(stat), entries) if value is not None and math.isfinite(value)]
        median = statistics.median(values) if values else math.nan
        scalars[f"{prefix}/model/{stat}_median"] = median
        scalars[f"{prefix}/model/{stat}_worst"] = (worst or _worst)(stat, values, median) if values else math.nan
    return scalars


def _worst(stat: str, values: Sequence[float], median: float) -> float:
    if stat.endswith(("_fraction", "_steps")):
        return max(values)
    if stat == "mean":
        return max(values, key=abs)
    if median <= 0:
        return next((value for value in values if value != median), median)
    ends = sorted({min(values), max(values)}, key=values.index)
    if min(ends) <= 0:
        return next(value for value in values if value <= 0)
    return max(ends, key=lambda value: abs(math.log(value / median)))
