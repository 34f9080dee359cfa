"""torch's kernels for tensors in CPU memory, with a faster way for most tensors.

On the CPU a hook runs after the numbers are there, so reading one through the tensor's memory waits for nothing; it is not the
synchronisation that ``.item()`` is on an accelerator.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.hooks.tensors import addresses_of, number, plain_values
from lightning_hooks.statistics.kernels.plain import Bounds, Kernels, Units, about_the_mean
from lightning_hooks.statistics.reduction import moved
from lightning_hooks.statistics.rows import MOMENTS, Clock, Column

CHUNK = 1 << 16
"""Values handled at a time: the chunk stays in the cache between reductions, and float32 sums stay short and exact."""

_CANCELLATION = 8.0
"""Where the mean square is more than this many variances, deviations from the mean have to be summed."""

_SAFE = (1e-15, 1e15)
"""Magnitudes between which squares neither overflow nor vanish in float32."""

_ROWS = threading.Lock()  # a layer may be called in several threads: a row is for one at a time


class Summary(NamedTuple):
    """The numbers of a tensor whose values are all finite."""

    n: int
    mean: float
    powers: Sequence[float]  # sums of squared deviations from the mean; also of third and fourth powers where they were taken
    min: float
    max: float
    zeros: int
    norm: float


class HostKernels(Kernels):
    """For tables in CPU memory, and tensors that are there too."""

    proves = True

    @override
    def record(
        self,
        table: Tensor,
        index: int,
        values: Tensor,
        clock: Clock | None = None,
        new_call: bool = True,
        bounds: Bounds | None = None,
        units: Units | None = None,
        moments: bool = False,
    ) -> bool:
        if not values.is_cpu or torch.compiler.is_compiling():  # a graph holds no numbers of the host
            return super().record(table, index, plain_values(values), clock, new_call, bounds, units, moments)
        values = values.detach() if addresses_of((values,), anywhere=True)[0] else plain_values(values)
        if not values.numel():  # it was freed
            bounds = units = None
        new = summarize_at_once(values, moments)
        with _ROWS:
            if new is None:
                super().record(table, index, values, clock, new_call, bounds, units, moments)
            else:
                if units is not None:
                    self.mark(values, units)
                row = table.numpy()[index]
                # In Python's numbers, in Column's order: single entries of an array cost more than the arithmetic.
                known = row.tolist()
                calls, count, mean, m2, low, high, zeros, nonfinite, saturated, saturable, norm, norm_max, most_units, *_ = known
                total, away = count + new.n, new.mean - mean
                by = away * new.n / total
                if bounds is not None:
                    saturated, saturable = saturated + number(torch.as_tensor(self.beyond(bounds))), saturable + bounds.total
                row[: Column.UNITS + 1] = (
                    *(calls + new_call, total, mean + by, m2 + new.powers[0] + away * by * count),
                    *(min(low, new.min), max(high, new.max), zeros + new.zeros, nonfinite),
                    *(saturated, saturable, norm + new.norm, max(norm_max, new.norm)),
                    max(most_units, 0 if units is None else units.n),
                )
                if moments:
                    row[MOMENTS] = _pooled(known[MOMENTS], new)
        return units is not None and units.fired is not None and bool(units.fired.numpy().all())


def summarize_at_once(values: Tensor, moments: bool = False) -> Summary | None:
    """Summarise a plain CPU tensor of any floating dtype, shape and strides chunk by chunk.

    Args:
        values: The tensor.
        moments: Whether to take the third and fourth powers of deviations too.

    Returns:
        None where that is not exact, or a value is not finite: :func:`~.summarize` is exact everywhere.
    """
    n, total, square, low, high, zeros = values.numel(), 0.0, 0.0, math.inf, -math.inf, 0
    if not n:
        return None
    flat = values.view(-1) if values.dtype is torch.float32 and values.is_contiguous() else _flat(values)
    chunks = (flat,) if n <= CHUNK else torch.split(flat, CHUNK)
    for chunk in chunks:
        array = chunk.numpy()
        part, whole = torch.stack((torch.dot(chunk, chunk), chunk.sum())).tolist()
        if not math.isfinite(part):
            return None
        square, total = square + part, total + whole
        low, high = min(low, float(array.min())), max(high, float(array.max()))
        zeros += int(np.count_nonzero(array == 0))
    peak = max(-low, high)
    if peak and not _SAFE[0] < peak < _SAFE[1]:
        return None
    mean = total / n
    powers: Sequence[float] = (square - mean * total,)
    if moments or powers[0] * _CANCELLATION < square:
        mean, powers = _about_the_mean(chunks, n, number(torch.tensor(mean, dtype=flat.dtype)))
        square = powers[0] + n * mean * mean
    return Summary(n, mean, powers, low, high, zeros, math.sqrt(square))


def _about_the_mean(chunks: Sequence[Tensor], n: int, pivot: float) -> tuple[float, Sequence[float]]:
    """The mean of values, and sums of powers of deviations from it, by way of a pivot of their dtype, in float64."""
    sums = [0.0, 0.0, 0.0, 0.0]
    for chunk in chunks:
        off = chunk.to(torch.float64, copy=True).sub_(pivot)
        square = off * off
        parts = torch.stack((off.sum(), square.sum(), torch.dot(square, off), torch.dot(square, square)))
        sums = [*map(operator.add, sums, parts.tolist())]
    by = sums[0] / n
    second, third, fourth = about_the_mean(by, *sums)
    return pivot + by, (max(second, 0.0), third, max(fourth, 0.0))


def _pooled(known: Sequence[float], new: Summary) -> tuple[float, ...]:
    """The columns of the higher moments of values in a row, with new ones; as :func:`~.pool` does."""
    count, mean, *powers = known
    total, away = count + new.n, new.mean - mean
    by = away * new.n / total
    return total, mean + by, *map(operator.add, moved(count, -by, powers), moved(new.n, away - by, new.powers))


def _flat(values: Tensor) -> Tensor:
    """The values in one dimension, float32 or float64, in memory order; a view wherever strides allow."""
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    return values.permute(sorted(range(values.dim()), key=values.stride, reverse=True)).reshape(-1)
