"""Quantiles of a histogram, and a coarser one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


def quantiles(edges: Sequence[float], counts: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Compute quantiles of a histogram; values are taken as spread evenly in each bin.

    Args:
        edges: Ascending, one more than counts.
        counts: Not negative, not all zero.
        shares: Ascending, 0 to 1.

    Returns:
        A value per share; 0 and 1 give the edges of the first and last bin that are not empty.
    """
    sides, values = np.asarray(edges, dtype=float), np.asarray(counts, dtype=float)
    above, filled = np.cumsum(values), np.flatnonzero(values)
    wanted = np.asarray(shares) * above[-1]
    place = np.clip(np.searchsorted(above, wanted), filled[0], filled[-1])
    within = np.clip((wanted - (above - values)[place]) / values[place], 0.0, 1.0)
    found: list[float] = (sides[place] + np.diff(sides)[place] * within).tolist()
    return found


def coarsened(edges: Sequence[float], counts: Sequence[float], parts: int = 256) -> tuple[list[float], list[float]]:
    """Join bins that are narrower than one of ``parts`` of the whole range: a chart shows about thirty.

    Args:
        edges: Rising, one more than counts.
        counts: Of each bin.
        parts: How many parts the range has.
    """
    width = (edges[-1] - edges[0]) / parts
    new_edges, new_counts, waiting = [edges[0]], [], 0.0
    for high, count in zip(edges[1:], counts, strict=True):
        waiting += count
        if high - new_edges[-1] >= width:
            new_edges.append(high)
            new_counts.append(waiting)
            waiting = 0.0
    if new_edges[-1] != edges[-1]:  # a narrow rest belongs to the last bin
        new_edges[-1 if new_counts else len(new_edges) :] = [edges[-1]]
        new_counts[-1:] = [(new_counts[-1] if new_counts else 0.0) + waiting]
    return new_edges, new_counts
