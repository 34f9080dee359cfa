"""The values of a report by tag."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Worst = Callable[[str, Sequence[float], float], float]


def stat_scalars(prefix: str, names: Iterable[str], found: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, float]:
    """Name statistics as ``prefix/<name>/<stat>``; NaN where there are none.

    Args:
        prefix: The monitor's.
        names: The sites, in order.
        found: Site to its statistics, where there are some.
        wanted: Which statistics.
    """
    scalars: dict[str, float] = {}
    for name in names:
        stats = found.get(name)
        for stat in wanted:
            value = getattr(stats, stat) if stats is not None else None
            scalars[f"{prefix}/{name}/{stat}"] = math.nan if value is None else float(value)
    return scalars


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
        values = [float(value) for entry in entries if (value := getattr(entry, stat)) is not None and math.isfinite(value)]
        median = statistics.median(values) if values else math.nan
        scalars[f"{prefix}/model/{stat}_median"] = median
        scalars[f"{prefix}/model/{stat}_worst"] = (worst or _worst)(stat, values, median) if values else math.nan
    return scalars


def _worst(stat: str, values: Sequence[float], median: float) -> float:
    if stat.endswith(("_fraction", "_steps")):
        return max(values)
    if stat == "mean":
        return max(values, key=abs)
    return max(values, key=lambda value: _log_distance(value, median))


def _log_distance(value: float, median: float) -> float:
    if value <= 0 or median <= 0:
        return 0.0 if value == median else math.inf
    return abs(math.log(value / median))
