"""The size of an update, from a sample of the elements of each parameter, and of rows of large tables."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import as_real, is_freed, plain_values
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.kernels import kernels_for

UPDATE_SAMPLE = 1 << 14
"""Up to so many elements of a parameter are all compared for its update ratio; of a larger one a quarter as many."""


class WeightSample:
    """Copies of parts of parameters before an update, for its size after it.

    Of a parameter with up to ``UPDATE_SAMPLE`` elements all are taken, so its ratio is exact; of a larger one a quarter as
    many, evenly spread over all its columns. The relative standard error of a norm estimated from n elements is about
    sqrt((kurtosis - 1) / 4n): 1.1 % for normally distributed values.

    Args:
        parameters: Plain dense tensors on one device.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        parameters = [as_real(parameter) for parameter in parameters]
        self._strides = _strides(tuple([parameter.shape for parameter in parameters]))
        self._kernels = kernels_for(parameters[0].device.type)
        self._taken = self._kernels.sample(parameters, self._strides)

    def updates(self, parameters: Sequence[Tensor]) -> Tensor:
        """‖after - before‖, ‖before‖ and the root mean square before of each parameter.

        Args:
            parameters: The same, after the update.

        Returns:
            Shape ``(3, n)``, in the row's dtype; NaN for those that became others.
        """
        return self._kernels.updates(self._taken, [as_real(parameter) for parameter in parameters], self._strides)

    def lost(self, parameters: Sequence[Tensor], places: Sequence[int]) -> Tensor:
        """How many elements kept their value although they had a gradient.

        Args:
            parameters: All of them, after the update, with their gradients.
            places: Which of them to look at: in half precision, with a dense gradient.

        Returns:
            Shape ``(2, len(places))``, in the row's dtype: such elements, and all with a gradient, of those that were taken.
        """
        now = [every(as_real(parameters[place]), self._strides[place]) for place in places]
        gradients = [every(as_real(_gradient(parameters[place])), self._strides[place]) for place in places]
        counts = [part.numel() for part in now]
        then = [self._taken[place].reshape(-1) for place in places]
        had = torch.cat(gradients) != 0
        flags = torch.stack((had & (torch.cat(then) == torch.cat(now)), had)).float()
        # A norm of order 1 of flags counts them, of all tensors in one call.
        found = torch.stack(torch._foreach_norm([part for row in flags for part in row.split(counts)], 1))
        return found.to(row_dtype(found.device)).view(2, -1)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def every(parameter: Tensor, stride: int) -> Tensor:
    """A copy of every stride-th element, in float32 at least."""
    flat = plain_values(parameter).reshape(-1)[::stride]
    return flat.to(torch.float64 if flat.dtype == torch.float64 else torch.float32, copy=True)


@functools.lru_cache(maxsize=256)
def _strides(shapes: tuple[torch.Size, ...]) -> tuple[int, ...]:
    """The distance between the elements that are taken of parameters of these shapes: the same at every step."""
    return tuple(spacing(shape.numel(), shape.numel() // shape[0] if shape and shape[0] else 1)[1] for shape in shapes)


@functools.lru_cache(maxsize=4096)
def spacing(numel: int, columns: int, sample: int = UPDATE_SAMPLE) -> tuple[int, int]:
    """How many elements of a parameter to take, and at what distance: all of up to ``sample``, of more a quarter as many."""
    if numel <= sample:
        return numel, 1
    stride = 4 * numel // sample
    while math.gcd(stride, columns) != 1:  # a common factor would visit some columns only
        stride += 1
    return -(-numel // stride), stride


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
