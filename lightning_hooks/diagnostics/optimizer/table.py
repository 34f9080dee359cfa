"""What optimizers do, as rows: the size of their updates, and how well their second moments follow the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.statistics.columns import SUM, Columns, RowTable


class OptimizerColumn(Columns):
    """What each number of an optimizer's row holds, over steps; only quotients are read."""

    UPDATE_SQUARE = SUM  # squares of the updates' elements
    UPDATE_ELEMENTS = SUM
    INSTABILITY = SUM
    INSTABILITY_STEPS = SUM
    STALE = SUM  # second moments below eps squared, of elements with a gradient
    WITH_GRADIENT = SUM  # elements with a gradient, where there are second moments


N_OPTIMIZER_COLUMNS = len(OptimizerColumn)


class OptimizerNumbers(NamedTuple):
    """What a row says; None where it was not measured."""

    update_rms: float | None
    instability: float | None
    stale_fraction: float | None


class OptimizerTable(RowTable):
    """A row for each optimizer.

    Args:
        n_rows: How many optimizers step.
        device: Where the rows live.
    """

    columns: ClassVar[type[Columns]] = OptimizerColumn
    alike_on_ranks: ClassVar[bool] = True

    def add(
        self, optimizer: int, updates: Tensor, elements: int, moments: Tensor | None = None, valid: Tensor | None = None
    ) -> None:
        """Record a measured step. No host sync.

        Args:
            optimizer: Which optimizer.
            updates: The norm of each parameter's update, shape ``(k,)``; a step in which one is not finite does not count.
            elements: How many elements the parameters have together.
            moments: What :func:`~.second_moments` read; None where there are none.
            valid: 0-d boolean: False if the optimizer itself skipped the step after all.
        """
        if updates.is_cpu and self.rows.is_cpu and moments is None and valid is None:  # the number is there: fewer calls
            norms = updates.numpy()
            square = float(norms @ norms)
            if math.isfinite(square):
                self.rows.numpy()[optimizer, : OptimizerColumn.INSTABILITY] += (square, elements)
            return
        row = self.rows.new_zeros(N_OPTIMIZER_COLUMNS)
        row[: OptimizerColumn.INSTABILITY] = elements
        row[OptimizerColumn.UPDATE_SQUARE] = torch.dot(updates, updates)
        if moments is not None:
            row[OptimizerColumn.INSTABILITY] = moments[0]
            row[OptimizerColumn.INSTABILITY_STEPS] = 1
            row[OptimizerColumn.STALE :] = moments[1:]
        counted = torch.isfinite(row).all()
        self.rows[optimizer] += torch.where(counted if valid is None else counted & valid, row, 0)

    def read(self, packed: Tensor) -> list[OptimizerNumbers]:
        """Name the numbers of each optimizer, on the host."""
        return [_numbers(row) for row in self.lines(packed)]


def _numbers(row: Sequence[float]) -> OptimizerNumbers:
    def share(part: OptimizerColumn, whole: OptimizerColumn) -> float | None:
        return row[part] / row[whole] if row[whole] else None

    square = share(OptimizerColumn.UPDATE_SQUARE, OptimizerColumn.UPDATE_ELEMENTS)
    return OptimizerNumbers(
        None if square is None else math.sqrt(square),
        share(OptimizerColumn.INSTABILITY, OptimizerColumn.INSTABILITY_STEPS),
        share(OptimizerColumn.STALE, OptimizerColumn.WITH_GRADIENT),
    )
