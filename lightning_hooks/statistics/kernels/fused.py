"""The kernels in Triton for CUDA tensors: each is read once, and its row is merged by another kernel. No host sync.

Triton is part of torch's CUDA builds.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.hooks.tensors import dense
from lightning_hooks.statistics.kernels.plain import Bounds, Kernels, Units
from lightning_hooks.statistics.rows import Clock, Column, empty_table

WHAT = "Triton"
REMEDY = "It needs a C compiler on the machine."

BLOCK = 1024
PROGRAMS = 1024
"""The most programs that share a tensor."""
_SHARE = 8  # blocks that a program reads at least: fewer are not worth a program

_TYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


class FusedKernels(Kernels):
    """For dense CUDA tensors. Two launches a tensor, whatever is asked of it.

    What a program finds goes into memory of torch's allocator, taken for the call: it is ordered on the stream, and safe in a
    CUDA graph.
    """

    name = "triton"

    def __init__(self) -> None:
        from lightning_hooks.statistics.kernels import fused_kernels

        self._kernels = fused_kernels
        self._columns: dict[str, Any] = {column.name: int(column) for column in Column}

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
        order, unit_dim = values, 0 if units is None else units.dim
        if units is not None and not values.is_contiguous():
            order, unit_dim = values.movedim(unit_dim, -1), values.dim() - 1  # channels_last
        readable = order.is_contiguous() if units is not None else dense(order)
        readable = readable and values.numel() > 0 and values.device == table.device and values.dtype in _TYPES
        if not readable or torch.compiler.is_compiling():  # a graph would have to trace how a kernel is launched
            return super().record(table, index, values, clock, new_call, bounds, units, moments)
        of_output = bounds if bounds is not None and bounds.values is values else None
        with torch.cuda.device_of(values):  # type: ignore[no-untyped-call]  # Triton launches on the current device
            self._launch(table[index], order, clock or Clock(values.device), new_call, of_output, units, unit_dim, moments)
        if bounds is not None and of_output is None:
            table[index, Column.SATURATED] += self.beyond(bounds)
            table[index, Column.SATURABLE] += bounds.total
        return False

    def _launch(
        self,
        row: Tensor,
        values: Tensor,
        clock: Clock,
        new_call: bool,
        bounds: Bounds | None,
        units: Units | None,
        unit_dim: int,
        moments: bool,
    ) -> None:
        n = values.numel()
        programs = min(PROGRAMS, -(-n // (BLOCK * _SHARE)))
        rounds = -(-n // (BLOCK * programs))
        found = torch.empty((programs, self._kernels.PARTIAL), dtype=torch.float64, device=values.device)
        low, high = (None, None) if bounds is None else (bounds.low, bounds.high)
        fired = None if units is None else units.fired
        self._kernels.partials[(programs,)](
            values,
            n,
            rounds,
            found,
            math.nan if low is None else low,  # no value is at or below a NaN
            math.nan if high is None else high,
            found if fired is None else fired.view(torch.int8),
            1 if units is None else units.n,
            math.prod(values.shape[unit_dim + 1 :]),
            BLOCK=BLOCK,
            WIDE=values.dtype == torch.float64,
            BOUNDS=bounds is not None,
            UNITS=fired is not None,
            MOMENTS=moments,
        )
        self._kernels.into_row[(1,)](
            found,
            programs,
            row,
            clock.tensor,
            int(new_call),
            float(0 if units is None else units.n),
            0 if bounds is None else bounds.total,
            MOMENTS=moments,
            PROGRAMS=1 << (programs - 1).bit_length(),
            **self._columns,
        )


def load() -> FusedKernels | None:
    """The kernels, tried once; None where there is no CUDA device or no Triton."""
    if not torch.cuda.is_available() or find_spec("triton") is None:
        return None
    found = FusedKernels()
    device = torch.device("cuda", torch.cuda.current_device())
    found.record(empty_table(1, device), 0, torch.ones(4, device=device), moments=True)
    return found
