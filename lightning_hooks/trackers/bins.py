"""Quantiles of a histogram, and a coarser one."""

from __future__ import annotations

from collections.abc import Sequence

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
    total = sum(counts)
    found: list[float] = []
    index, below = next(index for index, count in enumerate(counts) if count > 0), 0.0
    last = max(index for index, count in enumerate(counts) if count > 0)
    for share in shares:
        while index < last and below + counts[index] < share * total:
            below += counts[index]
            index += 1
        within = (share * total - below) / counts[index] if counts[index] else 0.0
        found.append(edges[index] + (edges[index + 1] - edges[index]) * min(max(within, 0.0), 1.0))
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
