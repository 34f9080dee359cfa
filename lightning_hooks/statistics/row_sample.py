"""The size of updates that touch some rows of a large table: embeddings, whose batches look up few of them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import is_freed
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.gradients import UPDATE_SAMPLE, every, spacing

SPREAD = 1 << 20
"""Up to so many elements of a table with a dense gradient are all compared; of a larger one a quarter as many."""

ROWS = 1 << 16
"""Elements of the rows with the largest gradients that are compared besides."""


class RowSample:
    """Copies of parts of a table before an update: whole rows that the gradient touches, and elements spread over the others.

    Where the update touches only rows that are taken whole, its size is exact. Rows that move without a gradient of this step,
    as by momentum, are estimated from the spread elements. No host sync, but the one that a sparse gradient's own indices take.

    Args:
        parameter: Plain and dense, of two dimensions or more.
        gradient: Its gradient, dense or sparse in its rows. All rows of a sparse one are taken whole, of a dense one those
            where it is largest.
    """

    def __init__(self, parameter: Tensor, gradient: Tensor) -> None:
        n_rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
        sparse = gradient.layout == torch.sparse_coo
        _, self._stride = spacing(parameter.numel(), columns, UPDATE_SAMPLE if sparse else SPREAD)
        if sparse:
            self._rows = gradient.detach().coalesce().indices()[0]
        else:
            sizes = torch.linalg.vector_norm(gradient.detach().reshape(n_rows, columns), dim=1)
            self._rows = sizes.topk(min(n_rows, max(ROWS // columns, 1)) if self._stride > 1 else 0).indices
        taken = torch.zeros(n_rows, dtype=torch.bool, device=parameter.device).index_fill_(0, self._rows, True)
        spread = torch.arange(0, parameter.numel(), self._stride, device=parameter.device)
        self._counted = (~taken)[spread // columns]
        self._others = float((n_rows - len(self._rows)) * columns)
        self._shape = parameter.shape
        self._before = self._parts(parameter)

    def _parts(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        rows = parameter.detach().reshape(parameter.shape[0], -1).index_select(0, self._rows)
        return every(rows, 1), every(parameter, self._stride)

    def updates(self, parameter: Tensor) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before, shape ``(3,)``; NaN if it was resized or freed.

        Args:
            parameter: The same, after the update.
        """
        if parameter.shape != self._shape or is_freed(parameter):
            return torch.full((3,), math.nan, dtype=row_dtype(parameter.device), device=parameter.device)
        (rows, spread), (rows_now, spread_now) = self._before, self._parts(parameter)
        dtype = row_dtype(parameter.device)
        scale = self._others / self._counted.sum(dtype=dtype).clamp(min=1)

        def square(whole: Tensor, part: Tensor) -> Tensor:
            others: Tensor = torch.linalg.vector_norm(torch.where(self._counted, part, 0), dtype=dtype).square() * scale
            rows_square: Tensor = torch.linalg.vector_norm(whole, dtype=dtype).square()
            both: Tensor = rows_square + others
            return both

        before = square(rows, spread)
        return torch.stack((square(rows_now - rows, spread_now - spread), before, before / parameter.numel())).sqrt()
