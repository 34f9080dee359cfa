"""The fast kernels for tensors in CPU memory.

On the CPU a hook runs after the numbers are there, so reading one through the tensor's memory waits for nothing; it is not the
synchronisation that ``.item()`` is on an accelerator. Knowing a minimum and a sum at once lets the cheap kernels do almost
all the work (``sum``, ``dot``, ``aminmax`` and ``eq`` into a float buffer are fast; ``isfinite``, ``var_mean`` and
``count_nonzero`` cost ten to a hundred times as much) and sends only the tensors that need it down the careful ways.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.statistics.rows import ParameterColumn

CHUNK = 1 << 17
"""Values handled at a time: the chunk stays in the cache between kernels, and float32 sums stay short and exact."""

SMALL = 1 << 12
"""Up to so many values numpy is quicker than torch: a call of it costs a third."""

_CANCELLATION = 16.0
"""Where the mean square is more than this many variances, the deviations are summed in float64 instead."""

_SQUARES_SAFE = (1e-15, 1e15)
"""Magnitudes between which squares neither overflow nor vanish in float32."""

_local = threading.local()


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


_EMPTY = HostSummary(0, 0.0, 0.0, math.inf, -math.inf, 0, 0, 0.0)


def summarize_on_host(values: Tensor) -> HostSummary:
    """Summarise a plain CPU tensor of any floating dtype, shape and strides."""
    n = values.numel()
    if n == 0:
        return _EMPTY
    flat = flatten(values)
    if n <= SMALL and (found := _few(flat.numpy(), n)) is not None:
        return found
    total = square = 0.0
    low, high = math.inf, -math.inf
    zeros = 0.0
    for chunk in (flat,) if n <= CHUNK else torch.split(flat, CHUNK):
        chunk_low, chunk_high = map(number, torch.aminmax(chunk))
        if not (math.isfinite(chunk_low) and math.isfinite(chunk_high)):  # aminmax hands on a NaN
            return _with_nonfinite(flat)
        low, high = min(low, chunk_low), max(high, chunk_high)
        total += number(chunk.sum())
        square += number(torch.dot(chunk, chunk))
        if chunk_low <= 0.0 <= chunk_high:
            zeros += number(torch.eq(chunk, 0, out=_scratch(chunk)).sum())
    mean = total / n
    m2 = square - mean * total
    peak = max(-low, high)
    if m2 * _CANCELLATION < square or not _SQUARES_SAFE[0] < peak < _SQUARES_SAFE[1]:
        mean, m2 = _careful(flat, mean, n) if peak else (0.0, 0.0)
        square = m2 + n * mean * mean
    return HostSummary(n, mean, m2, low, high, round(zeros), 0, math.sqrt(square))


def _few(values: np.ndarray, n: int) -> HostSummary | None:
    """Summarise a few values; None where they need care: all zero, not finite, of extreme size, or far from zero together."""
    with np.errstate(all="ignore"):
        square = float(np.dot(values, values))  # a NaN or an infinity shows here
    if not _SQUARES_SAFE[0] ** 2 < square < _SQUARES_SAFE[1] ** 2:
        return None
    total = float(np.add.reduce(values))
    mean = total / n
    m2 = square - mean * total
    if m2 * _CANCELLATION < square:
        return None
    low, high = float(np.minimum.reduce(values)), float(np.maximum.reduce(values))
    return HostSummary(n, mean, m2, low, high, n - int(np.count_nonzero(values)), 0, math.sqrt(square))


def flatten(values: Tensor) -> Tensor:
    """Return the values in one dimension, float32 or float64, in memory order; a view wherever strides allow."""
    if values.dtype not in (torch.float32, torch.float64):
        values = values.float()
    if values.is_contiguous():
        return values.view(-1)
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    return values.permute(order).reshape(-1)


def number(scalar: Tensor) -> float:
    """Read a 0-d CPU tensor through its memory."""
    return float(scalar.numpy())


def _careful(flat: Tensor, pivot: float, n: int) -> tuple[float, float]:
    """Mean and M2 from deviations in float64."""
    if not math.isfinite(pivot):  # the float32 sum overflowed
        pivot = sum(number(chunk.sum(dtype=torch.float64)) for chunk in torch.split(flat, CHUNK)) / n
    shift = m2 = 0.0
    for chunk in torch.split(flat, CHUNK):
        deviation = chunk.to(torch.float64, copy=True).sub_(pivot)  # a copy also of float64: the values are the model's
        shift += number(deviation.sum())
        m2 += number(torch.dot(deviation, deviation))
    return pivot + shift / n, max(m2 - shift * shift / n, 0.0)


def _with_nonfinite(flat: Tensor) -> HostSummary:
    """The rare way, for tensors that hold NaN or infinite values."""
    array = flat.numpy()
    kept = array[np.isfinite(array)].astype(np.float64)
    if not kept.size:
        return _EMPTY._replace(nonfinite=array.size)
    mean = float(kept.mean())
    m2 = float(np.square(kept - mean).sum())
    return HostSummary(
        finite=kept.size,
        mean=mean,
        m2=m2,
        min=float(kept.min()),
        max=float(kept.max()),
        zeros=kept.size - int(np.count_nonzero(kept)),
        nonfinite=array.size - kept.size,
        norm=math.sqrt(m2 + kept.size * mean * mean),
    )


def _scratch(like: Tensor) -> Tensor:
    """A buffer of this thread's, of the size and dtype of ``like``."""
    buffers: dict[torch.dtype, Tensor] = _local.__dict__.setdefault("buffers", {})
    buffer = buffers.get(like.dtype)
    if buffer is None:
        buffer = buffers[like.dtype] = torch.empty(CHUNK, dtype=like.dtype)
    return buffer[: like.numel()]


def norm_on_host(values: Tensor) -> float:
    """L2 norm of a plain CPU tensor; NaN or infinite if it holds such a value."""
    flat = flatten(values)
    square = 0.0
    for chunk in (flat,) if flat.numel() <= CHUNK else torch.split(flat, CHUNK):
        square += number(torch.dot(chunk, chunk))
    if square == 0.0 and not bool(flat.numpy().any()):  # a gradient of zeros is common, and needs no more
        return 0.0
    if not _SQUARES_SAFE[0] ** 2 < square < _SQUARES_SAFE[1] ** 2:
        # Squares that overflow or vanish in float32, and NaN: float64 tells which.
        square = 0.0
        for chunk in torch.split(flat, CHUNK):
            wide = chunk.double()
            square += number(torch.dot(wide, wide))
    return math.sqrt(square)


def norms_on_host(tensors: Sequence[Tensor]) -> list[float]:
    """L2 norms of plain CPU tensors: the small float32 ones in one call, the others and the extreme ones each by itself."""
    small = [place for place, tensor in enumerate(tensors) if tensor.dtype == torch.float32 and tensor.numel() <= CHUNK // 4]
    # What clip_grad_norm_ itself calls; torch has no public name for many norms at once.
    together = torch._foreach_norm([tensors[place] for place in small]) if small else ()
    norms = dict(zip(small, map(number, together), strict=True))
    safe = _SQUARES_SAFE
    return [
        norms[place] if place in norms and safe[0] < norms[place] < safe[1] else norm_on_host(tensor)
        for place, tensor in enumerate(tensors)
    ]


def zeros_on_host(values: Tensor) -> int:
    """How many values of a plain CPU tensor are exactly zero; of complex ones those with both parts zero."""
    if values.is_complex():
        return int(np.count_nonzero(values.resolve_conj().numpy() == 0))
    if values.numel() <= SMALL:
        return values.numel() - int(np.count_nonzero(flatten(values).numpy()))
    zeros = 0.0
    for chunk in torch.split(flatten(values), CHUNK):
        zeros += number(torch.eq(chunk, 0, out=_scratch(chunk)).sum())
    return round(zeros)


def enter_on_host(
    rows: Tensor, total: Tensor, indices: Tensor, norms: Tensor, zeros: Tensor, sizes: Tensor, global_step: int
) -> None:
    """Merge the rows of one optimizer step into a table in CPU memory, by numpy, and their norm into the optimizer's total.

    Args:
        rows: The parameter table.
        total: Finite steps and sum of norms, shape ``(2,)``.
        indices: Which rows, each once, shape ``(k,)``.
        norms: L2 norms, float64, shape ``(k,)``; not finite where a gradient is not.
        zeros: Zero elements, float64, shape ``(k,)``.
        sizes: Elements, float64, shape ``(k,)``.
        global_step: The trainer's, before the step.
    """
    table, at, found = rows.numpy(), indices.numpy(), norms.numpy()
    finite = np.isfinite(found)
    kept = np.where(finite, found, 0.0)
    new = table[at]
    with np.errstate(over="ignore"):
        squares = kept * kept
        whole = math.sqrt(squares.sum()) if finite.all() else math.nan
    new[:, ParameterColumn.STEPS] += finite
    new[:, ParameterColumn.NORM] += kept
    new[:, ParameterColumn.SQUARE] += squares
    np.maximum(new[:, ParameterColumn.NORM_MAX], kept, out=new[:, ParameterColumn.NORM_MAX])
    new[:, ParameterColumn.ZEROS] += zeros.numpy()
    new[:, ParameterColumn.ELEMENTS] += sizes.numpy()
    if not finite.all():
        new[:, ParameterColumn.NONFINITE_STEPS] += ~finite
        first = new[:, ParameterColumn.FIRST_NONFINITE]
        np.minimum(first, np.where(finite, np.inf, global_step), out=first)
    table[at] = new
    if math.isfinite(whole):
        total += torch.tensor((1.0, whole), dtype=total.dtype)


def enter_ratios_on_host(rows: Tensor, indices: Tensor, ratios: Tensor) -> None:
    """Enter update ratios, float64, shape ``(k,)``, in the same way; those that are not finite do not count."""
    table, at, found = rows.numpy(), indices.numpy(), ratios.numpy()
    counted = np.isfinite(found)
    table[at, ParameterColumn.RATIO] += np.where(counted, found, 0.0)
    table[at, ParameterColumn.RATIO_STEPS] += counted
