"""The named numbers of a feature row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_hooks.statistics.moments import kurtosis_of
from lightning_hooks.statistics.rows import Column


@dataclass(frozen=True, slots=True)
class FeatureStats:
    """What a module put out over the sampled batches of an epoch, all ranks pooled.

    Mean, std, min, max and rms are over finite values, and NaN where there were none.

    Attributes:
        calls: How often the module was called.
        count: Finite values.
        mean: Their mean.
        std: Their population standard deviation.
        min: The smallest.
        max: The largest.
        rms: Root mean square.
        zero_fraction: Share of all values that are exactly 0, in [0, 1].
        nonfinite_fraction: Share of all values that are NaN or infinite, in [0, 1].
        dead_fraction: Share of the units that never fired, in [0, 1]; None unless the module is a rectifier.
        saturated_fraction: Share of values (softmax: of distributions) at a bound, in [0, 1]; None unless bounded.
        first_nonfinite_batch: The first sampled training batch of the epoch (``batch_idx``) that gave a NaN or infinite value,
            on any rank; None if all were finite.
        kurtosis: Fourth central moment over the squared variance: 3 for a normal distribution, large where few values are far
            from the others. Of every fourth sampled batch of a window, the first one included: fourth powers cost a quarter more
            than all the rest. None where it was not measured, and where all values are the same.
        unit_samples: Finite values seen of each of a rectifier's units; None unless the module is a rectifier.
    """

    calls: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    rms: float
    zero_fraction: float
    nonfinite_fraction: float
    dead_fraction: float | None = None
    saturated_fraction: float | None = None
    first_nonfinite_batch: int | None = None
    kurtosis: float | None = None
    unit_samples: int | None = None

    @property
    def fires(self) -> bool:
        """Whether any of its units gave something other than zero; True for what is no rectifier."""
        return self.dead_fraction != 1.0


def feature_stats(
    row: Sequence[float], dead_fraction: float | None = None, bounded: bool = False, masks: bool = False
) -> FeatureStats:
    """Name the numbers of a row of a feature table.

    Args:
        row: One row as Python numbers.
        dead_fraction: Of the units, for a rectifier.
        bounded: Whether the site's activation has bounds.
        masks: Whether zeros are those of masked inputs, which are not saturated; where nothing else is there, all is.
    """
    saturated, saturable = row[Column.SATURATED], row[Column.SATURABLE]
    if masks and row[Column.ZEROS] < saturable:
        saturated, saturable = saturated - row[Column.ZEROS], saturable - row[Column.ZEROS]
    return FeatureStats(
        calls=int(row[Column.CALLS]),
        count=int(row[Column.COUNT]),
        dead_fraction=dead_fraction,
        saturated_fraction=(saturated / saturable if saturable else math.nan) if bounded else None,
        first_nonfinite_batch=first_nonfinite(row[Column.FIRST_NONFINITE]),
        kurtosis=kurtosis_of(row[Column.MOMENT_COUNT], row[Column.MOMENT_M2], row[Column.MOMENT_M4]),
        unit_samples=None if dead_fraction is None else int(row[Column.COUNT] / row[Column.UNITS]),
        **pooled_stats(row),
    )


def first_nonfinite(index: float) -> int | None:
    """The index of a batch or step, or None for +inf."""
    return None if math.isinf(index) else int(index)


def pooled_stats(row: Sequence[float]) -> dict[str, float]:
    """The numbers that features and gradients share, by name."""
    count, mean = row[Column.COUNT], row[Column.MEAN]
    seen = count + row[Column.NONFINITE]
    variance = row[Column.M2] / count if count else math.nan
    return {
        "mean": mean if count else math.nan,
        "std": math.sqrt(variance) if count else math.nan,
        "min": row[Column.MIN] if count else math.nan,
        "max": row[Column.MAX] if count else math.nan,
        "rms": math.sqrt(variance + mean * mean) if count else math.nan,
        "zero_fraction": row[Column.ZEROS] / seen if seen else math.nan,
        "nonfinite_fraction": row[Column.NONFINITE] / seen if seen else math.nan,
    }
