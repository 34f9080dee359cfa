"""Columns: what a table holds of each site, declared once with how each number merges.

From a declaration come the table on the device, its empty rows, the merge over batches, windows and ranks, its reset and its place
in a checkpoint. Recording into a row is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from itertools import groupby

import torch
from torch import Tensor
from typing_extensions import Self

from lightning_hooks.statistics.reduction import (
    Merge,
    Span,
    Spans,
    added,
    by_columns,
    largest,
    merge_tables,
    once,
    pool,
    pooled,
    smallest,
)


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """How the numbers of a column merge.

    Attributes:
        merge: Over ranks and over windows.
        stacked: The same of rows stacked along the first dimension, in one process, where that has to be fast.
        empty: The number while nothing is recorded.
        over_windows: Over windows in a row, where their order counts; None for ``merge``.
    """

    merge: Merge
    stacked: Callable[[Tensor], Tensor] | None = None
    empty: float = 0.0
    over_windows: Merge | None = None


SUM = Reduction(added, lambda rows: rows.sum(0))
MAXIMUM = Reduction(largest, lambda rows: rows.amax(0))  # the largest number; 0 while nothing is recorded
MAXIMUM_OR_NONE = Reduction(largest, MAXIMUM.stacked, -torch.inf)  # the largest number; minus infinity while nothing is recorded
# The smallest number; infinity while nothing is recorded.
MINIMUM_OR_NONE = Reduction(smallest, lambda rows: rows.amin(0), torch.inf)
# Columns next to each other: a count, a mean, and sums of powers of deviations from it, of all values together.
POOLED = Reduction(pooled, lambda rows: torch.stack(pool(*rows.unbind(-1)), -1))


class Columns(IntEnum):
    """Base class of declarations: ``NAME = reduction`` for each column, in order.

    Columns next to each other that have the same reduction merge together.

    Example:
        >>> class Fired(Columns):
        ...     CALLS = SUM
        ...     LARGEST = MAXIMUM_OR_NONE
        >>> Fired.empty(2).tolist()
        [[0.0, -inf], [0.0, -inf]]
    """

    reduction: Reduction

    def __new__(cls, reduction: Reduction) -> Self:
        """Number the columns in order."""
        column = int.__new__(cls, len(cls.__members__))
        column._value_ = len(cls.__members__)
        column.reduction = reduction
        return column

    @classmethod
    def empty(cls, n_rows: int, device: torch.device | str = "cpu", more: int = 0) -> Tensor:
        """Return rows in which nothing is recorded, filled on the device, so that nothing waits for it.

        Args:
            n_rows: How many.
            device: Where they live.
            more: Columns behind the declared ones, which add.

        Returns:
            Shape ``(n_rows, columns + more)``, of :func:`row_dtype`.
        """
        rows = torch.zeros((n_rows, len(cls) + more), dtype=row_dtype(torch.device(device)), device=device)
        for column in cls:
            if column.reduction.empty:
                rows[:, column] = column.reduction.empty
        return rows

    @classmethod
    @cache
    def groups(cls) -> list[tuple[Reduction, slice]]:
        """The columns that merge together, but for those that add."""
        runs = [(reduction, [*run]) for reduction, run in groupby(cls, lambda column: column.reduction)]
        return [(reduction, slice(int(run[0]), int(run[-1]) + 1)) for reduction, run in runs if reduction is not SUM]

    @classmethod
    def merge(cls, more: int = 0, windows: bool = False) -> Merge:
        """How rows that lie one behind the other merge.

        Args:
            more: Columns behind the declared ones, which add.
            windows: Whether they are those of windows in a row, not of ranks.
        """
        groups = [
            ((windows and reduction.over_windows) or reduction.merge, range(columns.start, columns.stop))
            for reduction, columns in cls.groups()
        ]
        return by_columns(groups, len(cls) + more)

    @classmethod
    def merged(cls, rows: Tensor) -> Tensor:
        """Merge rows along the first dimension, the earliest first: ``(k, …, columns)`` to ``(…, columns)``."""
        merged = rows.sum(0)
        for reduction, columns in cls.groups():
            of_rows = reduction.stacked or partial(merge_tables, reduction.merge)
            merged[..., columns] = of_rows(rows[..., columns])
        return merged


class RowTable:
    """A row of declared columns for each of some sites, on the device.

    Args:
        n_rows: How many.
        device: Where they live.
        columns: The declaration; None for that of the class.
        alike_on_ranks: Whether a row that is the same on every rank counts once: ranks take the same optimizer steps.

    Attributes:
        rows: Shape ``(n_rows, columns)``.
    """

    columns: type[Columns]
    more: int = 0  # columns behind the declared ones, which add
    alike_on_ranks: bool = False

    def __init__(
        self,
        n_rows: int,
        device: torch.device | str = "cpu",
        columns: type[Columns] | None = None,
        alike_on_ranks: bool | None = None,
    ) -> None:
        self.columns = columns or self.columns
        self.alike_on_ranks = self.alike_on_ranks if alike_on_ranks is None else alike_on_ranks
        self.rows = self.columns.empty(n_rows, device, self.more)

    @property
    def spans(self) -> Spans:
        """How packed tables merge."""
        merge = self.columns.merge(self.more)
        over_ranks = once(merge, self.rows.shape[1]) if self.alike_on_ranks else merge
        return (Span(self.rows.numel(), over_ranks, self.columns.merge(self.more, windows=True)),)

    def pack(self) -> Tensor:
        """Return the window's numbers as one vector."""
        return self.rows.flatten()

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        self.rows.copy_(packed.view_as(self.rows))

    def lines(self, packed: Tensor) -> list[list[float]]:
        """The rows of a packed table on the host, as numbers."""
        return packed.view(self.rows.shape).tolist()

    def follow(self, kept: Sequence[int | None]) -> None:
        """Go on with other rows.

        Args:
            kept: Of each row, which one it was before; None for a new one.
        """
        new = self.columns.empty(1, self.rows.device, self.more)[0]
        self.rows = torch.stack([new if place is None else self.rows[place] for place in kept] or [new])[: len(kept)]

    def grow(self, n_rows: int) -> None:
        """Make room for rows that came later."""
        self.rows = torch.cat((self.rows, self.columns.empty(n_rows - len(self.rows), self.rows.device, self.more)))

    def reset(self) -> None:
        """Start a new window."""
        self.rows.copy_(self.columns.empty(len(self.rows), self.rows.device, self.more))


def row_dtype(device: torch.device) -> torch.dtype:
    """Return float64, or float32 on devices that lack it (MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64
