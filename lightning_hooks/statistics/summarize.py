"""From a tensor to a row: the exact form for every device, and the one that adds it to a table."""

from __future__ import annotations

import math
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.statistics.fused import fused
from lightning_hooks.statistics.host import HostSummary, number, summarize_on_host
from lightning_hooks.statistics.native import native
from lightning_hooks.statistics.rows import ROW_BYTES, Clock, Column, empty_table, merge, row_dtype

_ROWS = Lock()  # a layer may be called in several threads: a row is for one at a time


def summarize(values: Tensor) -> Tensor:
    """Summarise one tensor as a row, without a host sync: every device, and traceable by ``torch.compile``.

    Two passes: the mean, then the deviations from it, both over finite values and summed in the row's dtype.

    Args:
        values: Floating point, any shape, also empty.

    Returns:
        Shape ``(n_columns,)``; the saturation columns are 0.
    """
    dtype = row_dtype(values.device)
    row = empty_table(1, values.device)[0]
    row[Column.CALLS] = 1
    if values.numel() == 0:
        return row
    x = values if values.dtype in (torch.float32, torch.float64) else values.float()
    finite = torch.isfinite(x)
    count = finite.sum(dtype=dtype)
    safe_count = count.clamp(min=1)
    kept = torch.where(finite, x, 0)
    pivot = (kept.sum(dtype=dtype) / safe_count).to(x.dtype)
    deviation = torch.where(finite, x - pivot, 0)
    shift = deviation.sum(dtype=dtype)
    spread = torch.linalg.vector_norm(deviation, dtype=dtype)
    norm = torch.linalg.vector_norm(kept, dtype=dtype)
    row[Column.COUNT] = count
    row[Column.MEAN] = pivot.to(dtype) + shift / safe_count
    row[Column.M2] = (spread * spread - shift * shift / safe_count).clamp(min=0)
    row[Column.MIN] = torch.where(finite, x, math.inf).amin()
    row[Column.MAX] = torch.where(finite, x, -math.inf).amax()
    row[Column.ZEROS] = (x == 0).sum(dtype=dtype)
    row[Column.NONFINITE] = values.numel() - count
    row[Column.NORM] = norm
    row[Column.NORM_MAX] = norm
    return row


def accumulate(
    table: Tensor,
    index: int,
    values: Tensor,
    clock: Clock | None = None,
    saturated: tuple[Tensor | int, int] | None = None,
    units: int = 0,
    new_call: bool = True,
    compiling: bool | None = None,
    readable: bool = False,
) -> None:
    """Merge the summary of ``values`` into row ``index`` of ``table``, in place and without a host sync.

    Args:
        table: Shape ``(n_sites, n_columns)``, contiguous.
        index: The site.
        values: Floating point, plain, outside autograd; any shape and device.
        clock: Tells the training batch; None for batch 0.
        saturated: How many entries are at a bound (a 0-d tensor, or a number) and how many could be, for bounded activations.
        units: How many units a rectifier has in ``values``.
        new_call: False for the second and later tensors of one call's output.
        compiling: Whether ``torch.compile`` is tracing this call, where the caller knows.
        readable: That the compiled path can read ``values`` where they lie, where the caller knows.
    """
    traced = torch.compiler.is_compiling() if compiling is None else compiling
    if not traced and table.is_cpu and values.is_cpu:
        now = 0 if clock is None else clock.batch
        at_bound, boundable = saturated if saturated is not None else (0, 0)
        if isinstance(at_bound, Tensor):
            at_bound = int(number(at_bound))
        fast = native()
        if fast is not None and (readable or fast.readable(values)):
            place = table.data_ptr() + index * ROW_BYTES
            fast.accumulate(values, place, new_call, now, units, at_bound, boundable)
        else:
            _accumulate_on_host(table, index, values, now, at_bound, boundable, units, new_call)
        return
    if not traced and values.is_cuda and table.is_cuda and values.numel():
        kernels = fused()
        if kernels is not None and kernels.readable(values):
            kernels.accumulate(table, index, values, clock or Clock(values.device), int(new_call))
            if saturated is not None:
                table[index, Column.SATURATED] += saturated[0]
                table[index, Column.SATURABLE] += saturated[1]
            if units:
                table[index, Column.UNITS].clamp_(min=units)
            return
    row = summarize(values)
    if saturated is not None:
        row[Column.SATURATED] = saturated[0]
        row[Column.SATURABLE] = saturated[1]
    row[Column.UNITS] = units
    if not new_call:
        row[Column.CALLS] = 0
    batch = torch.zeros_like(row[0]) if clock is None else clock.tensor.to(row.device, non_blocking=True)
    row[Column.FIRST_NONFINITE] = torch.where(row[Column.NONFINITE] > 0, batch, math.inf)
    target = table[index]
    target.copy_(merge(torch.stack((target, row.to(target.device, non_blocking=True)))))


def _accumulate_on_host(
    table: Tensor, index: int, values: Tensor, now: int, at_bound: int, boundable: int, units: int, new_call: bool
) -> None:
    """The same merge in Python numbers: on the CPU a tensor operation on a row costs more than the arithmetic."""
    row = table.numpy()[index]
    new = summarize_on_host(values)
    with _ROWS:
        _enter(row, new, now, at_bound, boundable, units, new_call)


def _enter(row: np.ndarray, new: HostSummary, now: int, at_bound: int, boundable: int, units: int, new_call: bool) -> None:
    # In Python's numbers: to read and write single entries of an array costs more than the arithmetic. The order is Column's.
    (calls, count, mean, m2, low, high, zeros, nonfinite, saturated, saturable, norm, norm_max, most_units, first) = row.tolist()
    if new.finite:
        total = count + new.finite
        delta = new.mean - mean
        mean += delta * (new.finite / total)
        m2 += new.m2 + delta * delta * (count * new.finite / total)
        count = total
    row[:] = (
        calls + new_call,
        count,
        mean,
        m2,
        min(low, new.min),
        max(high, new.max),
        zeros + new.zeros,
        nonfinite + new.nonfinite,
        saturated + at_bound,
        saturable + boundable,
        norm + new.norm,
        max(norm_max, new.norm),
        max(most_units, units),
        min(first, now) if new.nonfinite else first,
    )
