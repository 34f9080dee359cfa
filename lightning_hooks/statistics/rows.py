"""The row: a fixed-length summary of values that merges exactly.

A row is a commutative monoid under :func:`merge` with :func:`empty_table` as identity, so the same function joins batches
into an epoch, micro-batches into a step, and ranks into the world. Rows are float64 where the device has it: a float32
counter stops at 2²⁴, and sums of squares in float32 have given negative variances.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_hooks.statistics.columns import MAXIMUM, MAXIMUM_OR_NONE, MINIMUM_OR_NONE, POOLED, SUM, Columns, Reduction, row_dtype
from lightning_hooks.statistics.reduction import Merging, TableIndex


class Column(Columns):
    """What each number of a row holds. Means, moments, extremes and norms are over finite values only."""

    CALLS = SUM
    COUNT = POOLED  # finite values
    MEAN = POOLED
    M2 = POOLED  # sum of squared deviations from MEAN
    MIN = MINIMUM_OR_NONE
    MAX = MAXIMUM_OR_NONE
    ZEROS = SUM  # values exactly zero
    NONFINITE = SUM  # NaN or infinite values
    SATURATED = SUM  # values (or distributions) at a bound of the activation
    SATURABLE = SUM  # values (or distributions) that could have been
    NORM = SUM  # L2 norms of calls
    NORM_MAX = MAXIMUM
    UNITS = MAXIMUM  # units of a rectifier
    FIRST_NONFINITE = MINIMUM_OR_NONE  # index of the first training batch with a NaN or infinite value
    MOMENT_COUNT = POOLED  # finite values of the calls of which higher moments were recorded; so the four that follow
    MOMENT_MEAN = POOLED
    MOMENT_M2 = POOLED
    MOMENT_M3 = POOLED  # sum of third powers of deviations from MOMENT_MEAN
    MOMENT_M4 = POOLED  # sum of fourth powers


# The columns of the higher moments: of some calls only, with their own count and mean.
MOMENTS = slice(Column.MOMENT_COUNT, Column.MOMENT_M4 + 1)
N_COLUMNS = len(Column)


@functools.lru_cache(maxsize=256)
def fixed(values: tuple[int, ...], dtype: torch.dtype = torch.int64) -> Tensor:
    """Numbers that are the same at every step, as one tensor, made once; nobody writes into it."""
    with torch.inference_mode(False):  # whatever the user's code is under when a hook asks first
        return torch.tensor(values, dtype=dtype)


empty_table = Column.empty  # returns a table of identity rows, of shape (n_sites, n_columns)
merge = Column.merged  # merges rows along the first dimension: shape (k, …, n_columns) to (…, n_columns)


class Clock:
    """The training batch under way, as a number for the host and as a tensor for a device.

    Args:
        device: Where the tensor lives.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.batch = 0
        self.tensor = torch.zeros((), dtype=row_dtype(torch.device(device)), device=device)

    def set(self, batch: int) -> None:
        """A training batch starts; ``batch`` is its index in the epoch."""
        self.batch = batch
        self.tensor.fill_(batch)


def never_recorded(names: Sequence[str], *tables: Tensor) -> list[str]:
    """Return the names of the sites that have no call in any of the tables: reads them on the host."""
    calls = torch.stack([table[:, Column.CALLS] for table in tables]).sum(0).tolist()
    return [name for name, count in zip(names, calls, strict=True) if not count]


# With which power of a factor the columns of scaled values grow.
_POWERS = {
    1: (Column.MEAN, Column.MIN, Column.MAX, Column.NORM, Column.NORM_MAX, Column.MOMENT_MEAN),
    2: (Column.M2, Column.MOMENT_M2),
    3: (Column.MOMENT_M3,),
    4: (Column.MOMENT_M4,),
}


def scaled(rows: Tensor, factor: Tensor | float) -> Tensor:
    """Return the rows of the same values multiplied by a positive ``factor``: what the row of ``factor * x`` would be.

    Args:
        rows: Shape ``(…, n_columns)``.
        factor: A positive number, or a tensor that broadcasts over ``rows[..., 0]``.

    Returns:
        A new tensor of the shape of ``rows``.
    """
    result = rows.clone()
    for power, columns in _POWERS.items():
        for column in columns:
            result[..., column] *= factor if power == 1 else factor**power
    return result


class PendingRecords:
    """Records of backward passes whose steps are still to come.

    With several optimizers each backward pass is kept with those it has gradients for, so that the step of one does not decide
    about the gradients of another. Of a pass that has gradients for several, the first step decides.

    Args:
        empty: Makes the record of nothing.
        merge: Merges two records.

    Attributes:
        now: The record of the backward pass under way, written into in place.
    """

    def __init__(self, empty: Callable[[], Tensor], merge: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._empty, self._merge = empty, merge
        self.now = empty()
        self._aside: dict[frozenset[int], Tensor] = {}

    def set_aside(self, optimizers: frozenset[int]) -> None:
        """A backward pass is over. ``optimizers``: those it has gradients for; none where that is not known."""
        known = self._aside.get(optimizers)
        self._aside[optimizers] = self.now.clone() if known is None else self._merge(known, self.now)
        self.now.copy_(self._empty())

    def take(self, optimizer: int | None = None) -> Tensor:
        """What a step of this optimizer decides about; everything if there is but one. It waits no longer."""
        found = self.now.clone()
        for optimizers in [each for each in self._aside if optimizer is None or not each or optimizer in each]:
            found = self._merge(found, self._aside.pop(optimizers))
        self.now.copy_(self._empty())
        return found

    def records(self) -> list[Tensor]:
        """All that waits."""
        return [self.now, *self._aside.values()]


def _last_weight(own: Tensor, among: TableIndex) -> Merging:
    """Updates and moves, which add, and the norm and root mean square of the weight: of the last table with an update."""
    place = torch.where(own[..., :1] > 0, among.number + 1.0, 0.0).to(own.dtype)
    last = yield place
    found = yield torch.cat((own[..., :2], torch.where((place == last) & (place > 0), own[..., 2:], 0)), -1)
    yield own.new_zeros(0)
    return found


LAST_WEIGHT = Reduction(_last_weight)


class ParameterColumn(Columns):
    """What each number of a parameter's row holds."""

    STEPS = SUM  # measured optimizer steps with a finite gradient
    NORM = SUM  # its L2 norm over them
    SQUARE = SUM  # its squared norm
    NORM_MAX = MAXIMUM
    ZEROS = SUM  # zero elements, over measured steps
    ELEMENTS = SUM  # elements, over measured steps
    NONFINITE_STEPS = SUM
    MISSING_STEPS = SUM  # the gradient was None
    RATIO = SUM  # |update| / |weight|
    RATIO_STEPS = SUM
    FIRST_NONFINITE = MINIMUM_OR_NONE  # global step of the first measured one with a NaN or an infinite value
    RATIO_MAX = MAXIMUM
    UPDATES = LAST_WEIGHT  # measured updates, those of a weight of zeros among them
    MOVED = LAST_WEIGHT  # those of them that changed the weight
    WEIGHT_NORM = LAST_WEIGHT  # of the weight before the last measured update
    WEIGHT_RMS = LAST_WEIGHT  # its root mean square; as above
    LOST = SUM  # elements with a gradient that kept their value, over measured updates
    WITH_GRADIENT = SUM  # elements that were looked at for that, and had a gradient


N_PARAMETER_COLUMNS = len(ParameterColumn)


def parameter_rows(norms: Tensor, zeros: Tensor, elements: Tensor, global_step: int = 0) -> Tensor:
    """The rows of one optimizer step.

    Args:
        norms: L2 norms, shape ``(n,)``.
        zeros: Zero elements, shape ``(n,)``.
        elements: Sizes, shape ``(n,)``.
        global_step: The trainer's, before the step.

    Returns:
        Shape ``(n, n_parameter_columns)``.
    """
    finite = torch.isfinite(norms)
    kept = torch.where(finite, norms, 0)
    rows = norms.new_zeros((norms.shape[0], N_PARAMETER_COLUMNS))
    for column, numbers in (
        (ParameterColumn.STEPS, finite),
        (ParameterColumn.NORM, kept),
        (ParameterColumn.SQUARE, kept * kept),
        (ParameterColumn.NORM_MAX, kept),
        (ParameterColumn.ZEROS, zeros),
        (ParameterColumn.ELEMENTS, elements),
        (ParameterColumn.NONFINITE_STEPS, ~finite),
        (ParameterColumn.FIRST_NONFINITE, torch.where(finite, torch.inf, global_step)),
    ):
        rows[:, column] = numbers
    return rows
