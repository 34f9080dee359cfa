"""torch's and numpy's kernels for tensors in CPU memory.

On the CPU a hook runs after the numbers are there, so reading one through the tensor's memory waits for nothing; it is not the
synchronisation that ``.item()`` is on an accelerator. A few kernels that read fast do almost all the work (``sum`` and ``dot`` of
torch, extremes and comparisons of numpy; ``aminmax``, ``eq``, ``isfinite``, ``var_mean`` and ``count_nonzero`` of torch cost two to
a hundred times as much), and only the tensors that need it go the careful ways.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.hooks.tensors import addresses_of, all_values, as_real, plain_values
from lightning_hooks.statistics.host_copies import number
from lightning_hooks.statistics.kernels.plain import Bounds, Kernels, Norms, Units
from lightning_hooks.statistics.moments import pool_numbers
from lightning_hooks.statistics.rows import MOMENTS, Clock, ParameterColumn

CHUNK = 1 << 17
"""Values handled at a time: the chunk stays in the cache between kernels, and float32 sums stay short and exact."""

_CANCELLATION = 16.0
"""Where the mean square is more than this many variances, the deviations are summed in float64 instead."""

_SQUARES_SAFE = (1e-15, 1e15)
_FOURTH_SAFE = (1e-8, 1e8)
"""Magnitudes between which squares neither overflow nor vanish in float32."""

_TOGETHER = 1 << 10
"""Up to so many values the norms of several tensors are taken in one call, which is exact to 1e-6 even where all are alike."""

_WIDE = (torch.float32, torch.float64)
_FEW = 1 << 12
"""Up to so many values numpy sums sooner than torch: a call of it costs a third."""

_read: Callable[[Tensor], Any] = Tensor.tolist  # what number() does, without a call
_local = threading.local()
_ROWS = threading.Lock()  # a layer may be called in several threads: a row is for one at a time


class HostSummary(NamedTuple):
    """The numbers of one tensor, over its finite values."""

    finite: int
    mean: float
    m2: float
    min: float
    max: float
    zeros: int
    nonfinite: int
    norm: float
    m3: float = 0.0
    m4: float = 0.0


_EMPTY = HostSummary(0, 0.0, 0.0, math.inf, -math.inf, 0, 0, 0.0)


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
        at_bound, boundable = (0, 0) if bounds is None else (int(self.beyond(bounds)), bounds.total)
        if units is not None:
            self.mark(values, units)
        new = summarize_on_host(values, moments)
        with _ROWS:
            row = table.numpy()[index]
            # In Python's numbers: to read and write single entries of an array costs more than the arithmetic. In Column's order.
            known = row[: MOMENTS.start].tolist()
            (calls, count, mean, m2, low, high, zeros, nonfinite, saturated, saturable, norm, norm_max, most_units, first) = known
            if new.finite:
                total = count + new.finite
                delta = new.mean - mean
                mean += delta * (new.finite / total)
                m2 += new.m2 + delta * delta * (count * new.finite / total)
                count = total
            if new.nonfinite:
                first = min(first, 0 if clock is None else clock.batch)
            row[: MOMENTS.start] = (
                *(calls + new_call, count, mean, m2, min(low, new.min), max(high, new.max), zeros + new.zeros),
                *(nonfinite + new.nonfinite, saturated + at_bound, saturable + boundable, norm + new.norm),
                *(max(norm_max, new.norm), max(most_units, 0 if units is None else units.n), first),
            )
            if moments and new.finite:
                row[MOMENTS] = pool_numbers(row[MOMENTS].tolist(), (float(new.finite), new.mean, new.m2, new.m3, new.m4))
        return units is not None and units.fired is not None and bool(units.fired.numpy().all())

    @override
    def beyond(self, bounds: Bounds) -> Tensor | int:
        if not bounds.values.is_cpu or torch.compiler.is_compiling():
            return super().beyond(bounds)
        flat = flatten(plain_values(bounds.values)).numpy()
        low = 0 if bounds.low is None else _count(np.less_equal, flat, bounds.low)
        return low if bounds.high is None else low + _count(np.greater_equal, flat, bounds.high)

    @override
    def stream(self, out: Tensor, entered: Tensor | None, dim: int) -> tuple[Tensor, Tensor | None]:
        both = [tensor for tensor in (out, entered) if tensor is not None]
        if not all(each.is_cpu and each.is_contiguous() for each in both) or torch.compiler.is_compiling():
            return super().stream(out, entered, dim)
        wide = torch.float64 if any(each.dtype is torch.float64 for each in both) else torch.float32
        shape = math.prod(out.shape[:dim]), out.shape[dim], math.prod(out.shape[dim + 1 :])
        rows = max(CHUNK // (shape[1] * shape[2]), 1)
        square, totals = torch.zeros(shape[1], dtype=torch.float64), [0.0, 0.0]
        for given in zip(*(torch.split(each.view(shape), rows) for each in both), strict=True):
            piece, *before = (each.to(wide) for each in given)  # which stay in the cache
            along = torch.linalg.vector_norm(piece, dim=2).square() if shape[2] > 1 else (piece * piece).squeeze(2)
            square += along.sum(0)
            for each in before:
                written = (piece - each).view(-1)
                totals[0] += number(torch.dot(each.reshape(-1), each.reshape(-1)))
                totals[1] += number(torch.dot(written, written))
        return square, None if entered is None else torch.tensor(totals, dtype=torch.float64)

    @override
    def norms(self, tensors: Sequence[Tensor], zeros: bool = False, addresses: Sequence[int] | None = None) -> Norms:
        known = addresses is not None and 0 not in addresses
        plain = [*map(Tensor.detach, tensors)] if known else all_values(tensors)
        found = _norms([*map(as_real, plain)] if any(map(torch.is_complex, plain)) else plain)
        counts = torch.tensor(_zeros(plain), dtype=torch.float64) if zeros else None
        return Norms(torch.tensor(found, dtype=torch.float64), counts, [*map(Tensor.numel, plain)])

    @override
    def enter(
        self,
        rows: Tensor,
        total: Tensor,
        indices: Tensor,
        norms: Tensor,
        zeros: Tensor,
        sizes: Tensor,
        global_step: int,
        valid: Tensor | None = None,
    ) -> None:
        if valid is not None and not number(valid):
            return
        found = norms.numpy()
        whole = math.sqrt(number(torch.dot(norms, norms)))
        if not math.isfinite(whole):
            super().enter(rows, total, indices, norms, zeros, sizes, global_step)
            return
        # Few calls: there are a dozen parameters as often as a thousand. The order is ParameterColumn's, up to ELEMENTS.
        none = np.zeros_like(found)
        table, at = rows.numpy(), indices.numpy()
        new = table[at]
        norm_max = np.maximum(new[:, ParameterColumn.NORM_MAX], found)
        new[:, : ParameterColumn.ELEMENTS + 1] += np.array((none + 1, found, found * found, none, zeros.numpy(), sizes.numpy())).T
        new[:, ParameterColumn.NORM_MAX] = norm_max
        table[at] = new
        totals = total.numpy()
        totals += (1.0, whole)

    @override
    def enter_updates(self, rows: Tensor, indices: Tensor, updates: Tensor, valid: Tensor | None = None) -> None:
        if valid is not None and not number(valid):
            return
        table, (update, weight, rms) = rows.numpy(), updates.numpy()
        finite = np.isfinite(update) & np.isfinite(weight)
        at, update, weight, rms = indices.numpy()[finite], update[finite], weight[finite], rms[finite]
        table[at, ParameterColumn.UPDATES] += 1
        table[at, ParameterColumn.MOVED] += update > 0
        table[at, ParameterColumn.WEIGHT_NORM], table[at, ParameterColumn.WEIGHT_RMS] = weight, rms
        at, ratio = at[weight > 0], update[weight > 0] / weight[weight > 0]
        table[at, ParameterColumn.RATIO] += ratio
        table[at, ParameterColumn.RATIO_STEPS] += 1
        table[at, ParameterColumn.RATIO_MAX] = np.maximum(table[at, ParameterColumn.RATIO_MAX], ratio)


def summarize_on_host(values: Tensor, moments: bool = False) -> HostSummary:
    """Summarise a plain CPU tensor of any floating dtype, shape and strides."""
    n = values.numel()
    if n == 0:
        return _EMPTY
    flat = values.view(-1) if values.dtype in _WIDE and values.is_contiguous() else flatten(values)
    total = square = 0.0
    low, high = math.inf, -math.inf
    zeros = 0
    for chunk in (flat,) if n <= CHUNK else torch.split(flat, CHUNK):
        array = chunk.numpy()
        if len(array) > _FEW:
            part, chunk_total = _read(torch.mul(chunk, chunk).sum()), _read(chunk.sum())  # pairwise, as ``dot`` does not
        else:
            with np.errstate(all="ignore"):
                part, chunk_total = float(np.dot(array, array)), float(np.add.reduce(array))
        if not math.isfinite(part) and not np.isfinite(array).all():  # it also overflows
            return _with_nonfinite(flat, moments)
        chunk_low, chunk_high = float(np.minimum.reduce(array)), float(np.maximum.reduce(array))
        low, high = min(low, chunk_low), max(high, chunk_high)
        total += chunk_total
        square += part
        if chunk_low <= 0.0 <= chunk_high:
            zeros += _count(np.equal, array, 0) if len(array) > _FEW else len(array) - int(np.count_nonzero(array))
    mean = total / n
    m2 = square - mean * total
    peak = max(-low, high)
    if m2 * _CANCELLATION < square or not _SQUARES_SAFE[0] < peak < _SQUARES_SAFE[1]:
        mean, m2 = _careful(flat, mean, n) if peak else (0.0, 0.0)
        square = m2 + n * mean * mean
    found = HostSummary(n, mean, m2, low, high, zeros, 0, math.sqrt(square))
    return _with_moments(found, flat) if moments else found


def flatten(values: Tensor) -> Tensor:
    """Return the values in one dimension, float32 or float64, in memory order; a view wherever strides allow."""
    if values.dtype not in _WIDE:
        values = values.float()
    if values.is_contiguous():
        return values.view(-1)
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    return values.permute(order).reshape(-1)


def _chunks(flat: Tensor) -> Sequence[Tensor]:
    return (flat,) if flat.numel() <= CHUNK else torch.split(flat, CHUNK)


def _count(compare: np.ufunc, flat: np.ndarray[Any, Any], value: float) -> int:
    """How often a comparison holds, piece by piece: what it gives stays in the cache."""
    flags: np.ndarray[Any, Any] | None = getattr(_local, "flags", None)
    if flags is None:
        flags = _local.flags = np.empty(CHUNK, dtype=bool)
    found = 0
    for start in range(0, len(flat), CHUNK):
        piece = flat[start : start + CHUNK]
        found += int(np.count_nonzero(compare(piece, value, out=flags[: len(piece)])))
    return found


def _careful(flat: Tensor, pivot: float, n: int) -> tuple[float, float]:
    """Mean and M2 from deviations in float64."""
    if not math.isfinite(pivot):  # the float32 sum overflowed
        pivot = sum(number(chunk.sum(dtype=torch.float64)) for chunk in _chunks(flat)) / n
    shift = m2 = 0.0
    for chunk in _chunks(flat):
        deviation = chunk.to(torch.float64, copy=True).sub_(pivot)  # a copy also of float64: the values are the model's
        shift += number(deviation.sum())
        m2 += number(torch.dot(deviation, deviation))
    return pivot + shift / n, max(m2 - shift * shift / n, 0.0)


def _with_nonfinite(flat: Tensor, moments: bool) -> HostSummary:
    """The rare way, for tensors that hold NaN or infinite values."""
    array = flat.numpy()
    kept = array[np.isfinite(array)].astype(np.float64)
    if not kept.size:
        return _EMPTY._replace(nonfinite=array.size)
    mean = float(kept.mean())
    m2 = float(np.square(kept - mean).sum())
    found = HostSummary(
        finite=kept.size,
        mean=mean,
        m2=m2,
        min=float(kept.min()),
        max=float(kept.max()),
        zeros=kept.size - int(np.count_nonzero(kept)),
        nonfinite=array.size - kept.size,
        norm=math.sqrt(m2 + kept.size * mean * mean),
    )
    return _with_moments(found, torch.from_numpy(kept)) if moments else found


def _with_moments(found: HostSummary, finite: Tensor) -> HostSummary:
    """A summary with the third and fourth moments: in the values' type chunk by chunk, where that is exact enough; in float64."""
    n, mean, m2 = found.finite, found.mean, found.m2
    near = _FOURTH_SAFE[0] < max(-found.min, found.max) < _FOURTH_SAFE[1] and m2 * _CANCELLATION >= m2 + n * mean * mean
    dtype = finite.dtype if near else torch.float64
    pivot, s3, s4 = number(torch.tensor(mean, dtype=dtype)), 0.0, 0.0
    memory = torch.empty(2, min(CHUNK, finite.numel()), dtype=dtype)  # for one chunk after the other
    for chunk in _chunks(finite):
        deviation, square = memory[:, : chunk.numel()]
        torch.sub(chunk, pivot, out=deviation)
        torch.mul(deviation, deviation, out=square)
        # ``sum`` adds pairwise; ``dot`` does not on every processor, and fourth powers differ by so much that it loses small ones.
        s3 += number(torch.mul(square, deviation, out=deviation).sum())
        s4 += number(torch.mul(square, square, out=square).sum())
    by = mean - pivot  # which rounding the mean leaves
    m3 = s3 - by * (3 * m2 + by * by * n)
    return found._replace(m3=m3, m4=max(s4 - by * (4 * m3 + by * (6 * m2 + by * by * n)), 0.0))


def _norms(tensors: Sequence[Tensor]) -> list[float]:
    """L2 norms of plain CPU tensors: the small float32 ones in one call, the others and the extreme ones each by itself."""
    found, small, places = [0.0] * len(tensors), [], []
    for place, tensor in enumerate(tensors):
        if tensor.dtype is torch.float32 and tensor.numel() <= _TOGETHER:
            small.append(tensor)
            places.append(place)
        elif tensor.dtype is torch.float32 and tensor.numel() <= CHUNK and tensor.is_contiguous():
            flat = tensor.view(-1)  # as _norm does, without a call
            found[place] = math.sqrt(_read(torch.mul(flat, flat).sum()))
    # What clip_grad_norm_ itself calls; torch has no public name for many norms at once.
    for place, norm in zip(places, torch.stack(torch._foreach_norm(small)).tolist() if small else (), strict=True):
        found[place] = norm
    for place, norm in enumerate(found):
        if not _SQUARES_SAFE[0] < norm < _SQUARES_SAFE[1]:
            found[place] = _norm(tensors[place])
    return found


def _norm(values: Tensor) -> float:
    """L2 norm of a plain CPU tensor; NaN or infinite if it holds such a value."""
    flat = flatten(values)
    # ``sum`` adds pairwise; ``dot`` does not, and clipped values are alike: each addition would round the same way.
    square = sum(number(torch.mul(chunk, chunk).sum()) for chunk in _chunks(flat))
    if square == 0.0 and not bool(flat.numpy().any()):  # a gradient of zeros is common, and needs no more
        return 0.0
    if not _SQUARES_SAFE[0] ** 2 < square < _SQUARES_SAFE[1] ** 2:
        # Squares that overflow or vanish in float32, and NaN: float64 shows which.
        square = sum(number(torch.dot(wide, wide)) for wide in (chunk.double() for chunk in _chunks(flat)))
    return math.sqrt(square)


def _zeros(tensors: Sequence[Tensor]) -> list[int]:
    """How many values of each of some plain CPU tensors are exactly zero; of complex ones those with both parts zero."""
    found = []
    for values in tensors:
        if values.numel() <= _FEW and values.dtype in _WIDE:
            found.append(values.numel() - int(np.count_nonzero(values.numpy())))
        else:
            flat = values.resolve_conj().reshape(-1) if values.is_complex() else flatten(values)
            found.append(_count(np.equal, flat.numpy(), 0))
    return found
