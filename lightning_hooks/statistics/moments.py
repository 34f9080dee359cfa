"""Central moments of several tables, taken from one mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from torch import Tensor

Number = TypeVar("Number", Tensor, float)


def moved(count: Number, by: Number, sums: Sequence[Number]) -> list[Number]:
    """Take sums of powers of deviations from another centre.

    After Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments" (2008):
    ``Σ (x - c)^p = Σ_k C(p, k) (mean - c)^k Σ (x - mean)^(p - k)``.

    Args:
        count: How many values each table has.
        by: How far their mean lies above the new centre.
        sums: Their sums of squared deviations from their mean; then of third powers, and so on.

    Returns:
        The same sums of deviations from the new centre.
    """
    moved_sums = []
    for power, own in enumerate(sums, start=2):
        found = own + count * by**power
        for k in range(1, power - 1):
            found = found + math.comb(power, k) * by**k * sums[power - k - 2]
        moved_sums.append(found)
    return moved_sums


def pool(count: Tensor, mean: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
    """Pool counts, means and sums of powers of deviations along the first dimension.

    By the k-way form of the pairwise update of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances" (1979), and of its extension to higher powers by Pébay (2008), which do not cancel.

    Args:
        count: How many values each has, ``(k, …)``.
        mean: Their means.
        sums: Their sums of squared deviations from it; then of third powers, and so on.

    Returns:
        The same of all values together, ``(…)``.
    """
    total = count.sum(0)
    pooled = (count * mean).sum(0) / total.clamp(min=1)
    return total, pooled, *(each.sum(0) for each in moved(count, mean - pooled, sums))


def pool_numbers(known: Sequence[float], new: Sequence[float]) -> list[float]:
    """What :func:`pool` does, of two tables (count, mean, sums of powers) in Python's numbers."""
    total = known[0] + new[0]
    mean = (known[0] * known[1] + new[0] * new[1]) / total
    with np.errstate(all="ignore"):  # powers of numpy's numbers overflow to infinity, and those of Python's raise
        sums = [moved(count, np.float64(own - mean), powers) for count, own, *powers in (known, new)]
        return [total, mean, *map(sum, zip(*sums, strict=True))]


def kurtosis_of(count: float, m2: float, m4: float) -> float | None:
    """The kurtosis ``n Σ (x - mean)⁴ / (Σ (x - mean)²)²``: 3 for a normal distribution.

    Args:
        count: How many values.
        m2: Their sum of squared deviations from the mean.
        m4: Their sum of fourth powers of them.

    Returns:
        At least 1; None where all values are the same, where there are none, and where fourth powers overflow or vanish.
    """
    if not (m2 > 0 and m4 > 0 and math.isfinite(m4)):
        return None
    return count * (m4 / m2 / m2)
