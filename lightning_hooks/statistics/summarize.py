"""From a tensor to a row: the exact form for every device, and the one that adds it to a table."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lightning_hooks.statistics.host import summarize_on_host
from lightning_hooks.statistics.rows import N_COLUMNS, Column, empty_table, merge, row_dtype


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
    saturated: tuple[Tensor, int] | None = None,
    units: int = 0,
    new_call: bool = True,
) -> None:
    """Merge the summary of ``values`` into row ``index`` of ``table``, in place and without a host sync.

    Args:
        table: Shape ``(n_sites, n_columns)``.
        index: The site.
        values: Floating point, plain, outside autograd; any shape and device.
        saturated: How many entries are at a bound (a 0-d tensor) and how many could be, for bounded activations.
        units: How many units a rectifier has in ``values``.
        new_call: False for the second and later tensors of one call's output.
    """
    if table.device.type == "cpu" and values.device.type == "cpu" and not torch.compiler.is_compiling():
        _accumulate_on_host(table, index, values, saturated, units, new_call)
        return
    row = summarize(values)
    if saturated is not None:
        row[Column.SATURATED] = saturated[0]
        row[Column.SATURABLE] = saturated[1]
    row[Column.UNITS] = units
    if not new_call:
        row[Column.CALLS] = 0
    target = table[index]
    target.copy_(merge(torch.stack((target, row.to(target.device, non_blocking=True)))))


def _accumulate_on_host(
    table: Tensor, index: int, values: Tensor, saturated: tuple[Tensor, int] | None, units: int, new_call: bool
) -> None:
    """The same merge in Python numbers: on the CPU a tensor operation on a row costs more than the arithmetic."""
    row = table.numpy()[index]
    calls, count, mean, m2, low, high, zeros, nonfinite, at_bound, boundable, norm, norm_max, known_units = map(float, row)
    new = summarize_on_host(values)
    total = count + new.finite
    if new.finite:
        delta = new.mean - mean
        mean += delta * (new.finite / total)
        m2 += new.m2 + delta * delta * (count * new.finite / total)
    if saturated is not None:
        at_bound += float(saturated[0].numpy())
        boundable += saturated[1]
    merged = [0.0] * N_COLUMNS
    merged[Column.CALLS] = calls + new_call
    merged[Column.COUNT] = total
    merged[Column.MEAN] = mean
    merged[Column.M2] = m2
    merged[Column.MIN] = min(low, new.min)
    merged[Column.MAX] = max(high, new.max)
    merged[Column.ZEROS] = zeros + new.zeros
    merged[Column.NONFINITE] = nonfinite + new.nonfinite
    merged[Column.SATURATED] = at_bound
    merged[Column.SATURABLE] = boundable
    merged[Column.NORM] = norm + new.norm
    merged[Column.NORM_MAX] = max(norm_max, new.norm)
    merged[Column.UNITS] = max(known_units, units)
    row[:] = merged
