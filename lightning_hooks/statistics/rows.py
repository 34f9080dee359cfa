"""The row: a fixed-length summary of values that merges exactly.

A row is a commutative monoid under :func:`merge` with :func:`empty_table` as identity, so the same function joins batches
into an epoch, micro-batches into a step, and ranks into the world. Rows are float64 where the device has it: a float32
counter stops at 2²⁴, and sums of squares in float32 have given negative variances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from enum import IntEnum

import torch
from torch import Tensor

from lightning_hooks.statistics.moments import moved
from lightning_hooks.statistics.reduction import by_columns, largest, pooled, smallest


class Column(IntEnum):
    """What each number of a row holds. Means, moments, extremes and norms are over finite values only."""

    CALLS = 0
    COUNT = 1  # finite values
    MEAN = 2
    M2 = 3  # sum of squared deviations from MEAN
    MIN = 4  # +inf while COUNT is 0
    MAX = 5  # -inf while COUNT is 0
    ZEROS = 6  # values exactly zero
    NONFINITE = 7  # NaN or infinite values
    SATURATED = 8  # values (or distributions) at a bound of the activation
    SATURABLE = 9  # values (or distributions) that could have been
    NORM = 10  # sum over calls of the L2 norm
    NORM_MAX = 11
    UNITS = 12  # units of a rectifier
    FIRST_NONFINITE = 13  # index of the first training batch with a NaN or infinite value; +inf if none
    MOMENT_COUNT = 14  # finite values of the calls of which higher moments were recorded; so the four that follow
    MOMENT_MEAN = 15
    MOMENT_M2 = 16
    MOMENT_M3 = 17  # sum of third powers of deviations from MOMENT_MEAN
    MOMENT_M4 = 18  # sum of fourth powers


MOMENTS = slice(Column.MOMENT_COUNT, Column.MOMENT_M4 + 1)
"""The columns of the higher moments: of some calls only, with their own count and mean."""
N_COLUMNS = len(Column)
ROW_BYTES = 8 * N_COLUMNS  # where rows are float64


class ParameterColumn(IntEnum):
    """What each number of a parameter's row holds; all add but maxima, FIRST_NONFINITE and the weight's last norm and RMS."""

    STEPS = 0  # measured optimizer steps with a finite gradient
    NORM = 1  # sum of its L2 norm over them
    SQUARE = 2  # sum of its squared norm
    NORM_MAX = 3
    ZEROS = 4  # zero elements, over measured steps
    ELEMENTS = 5  # elements, over measured steps
    NONFINITE_STEPS = 6
    MISSING_STEPS = 7  # the gradient was None
    RATIO = 8  # sum of |update| / |weight|
    RATIO_STEPS = 9
    FIRST_NONFINITE = 10  # global step of the first measured one with a NaN or an infinite value; +inf if none
    RATIO_MAX = 11
    UPDATES = 12  # measured updates, those of a weight of zeros among them
    MOVED = 13  # those of them that changed the weight
    WEIGHT_NORM = 14  # of the weight before the last measured update: of two windows the later one's counts
    WEIGHT_RMS = 15  # its root mean square; as above
    LOST = 16  # elements with a gradient that kept their value, over measured updates
    WITH_GRADIENT = 17  # elements that were looked at for that, and had a gradient


N_PARAMETER_COLUMNS = len(ParameterColumn)


def row_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that lack it (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


@functools.lru_cache(maxsize=256)
def fixed(values: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers that are the same at every step, as one tensor, made once; nobody writes into it."""
    return lasting(lambda: torch.tensor(values, dtype=dtype))


def lasting(make: Callable[[], Tensor]) -> Tensor:
    """Make a tensor in a hook that is written into later: under the user's ``inference_mode`` that would be forbidden then."""
    with torch.inference_mode(False):
        return make()


def empty_table(n_sites: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a table of ``n_sites`` identity rows, of shape ``(n_sites, n_columns)``."""
    device = torch.device(device)
    table = torch.zeros((n_sites, N_COLUMNS), dtype=row_dtype(device), device=device)  # filled on the device: a copy would wait
    table[:, Column.MIN] = torch.inf
    table[:, Column.MAX] = -torch.inf
    table[:, Column.FIRST_NONFINITE] = torch.inf
    return table


class Clock:
    """The training batch under way, as a number for the host and as a tensor for a device.

    Args:
        device: Where the tensor lives.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        device = torch.device(device)
        self.batch = 0
        self.tensor = torch.zeros((), dtype=row_dtype(device), device=device)

    def set(self, batch: int) -> None:
        """A training batch starts; ``batch`` is its index in the epoch."""
        self.batch = batch
        self.tensor.fill_(batch)


def never_recorded(names: Sequence[str], *tables: Tensor) -> list[str]:
    """Return the names of the sites that have no call in any of the tables: reads them on the host."""
    calls = torch.stack([table[:, Column.CALLS] for table in tables]).sum(0).tolist()
    return [name for name, count in zip(names, calls, strict=True) if not count]


def merge(rows: Tensor) -> Tensor:
    """Merge rows along the first dimension.

    Args:
        rows: Shape ``(k, …, n_columns)``.

    Returns:
        Shape ``(…, n_columns)``.
    """
    _, mean, m2 = pool(rows[..., Column.COUNT], rows[..., Column.MEAN], rows[..., Column.M2])
    moments = pool(*rows[..., MOMENTS].unbind(-1))
    merged = rows.sum(0)  # right for the counts; the columns that do not add follow
    merged[..., Column.MEAN] = mean
    merged[..., Column.M2] = m2
    merged[..., MOMENTS] = torch.stack(moments, -1)
    for column in (Column.MIN, Column.FIRST_NONFINITE):
        merged[..., column] = rows[..., column].amin(0)
    for column in (Column.MAX, Column.NORM_MAX, Column.UNITS):
        merged[..., column] = rows[..., column].amax(0)
    return merged


merged_rows = by_columns(
    (
        (pooled, (Column.COUNT, Column.MEAN, Column.M2)),
        (pooled, range(MOMENTS.start, MOMENTS.stop)),
        (smallest, (Column.MIN, Column.FIRST_NONFINITE)),
        (largest, (Column.MAX, Column.NORM_MAX, Column.UNITS)),
    ),
    N_COLUMNS,
)
"""How the rows of several tables merge, as :func:`merge` does."""


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


def scaled(rows: Tensor, factor: Tensor | float) -> Tensor:
    """Return the rows of the same values multiplied by a positive ``factor``: what the row of ``factor * x`` would be.

    Args:
        rows: Shape ``(…, n_columns)``.
        factor: A positive number, or a tensor that broadcasts over ``rows[..., 0]``.

    Returns:
        A new tensor of the shape of ``rows``.
    """
    result = rows.clone()
    for column in (Column.MEAN, Column.MIN, Column.MAX, Column.NORM, Column.NORM_MAX):
        result[..., column] *= factor
    result[..., Column.MOMENT_MEAN] *= factor
    for power, columns in ((2, (Column.M2, Column.MOMENT_M2)), (3, (Column.MOMENT_M3,)), (4, (Column.MOMENT_M4,))):
        for column in columns:
            result[..., column] *= factor**power
    return result
