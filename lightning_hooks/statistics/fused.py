"""The fused path for CUDA tensors: each is read once, by a Triton kernel, and its row is merged by another. No host sync.

Triton is part of torch's CUDA builds. Where it is missing or fails, or with ``LIGHTNING_HOOKS_NATIVE=0`` in the environment,
:func:`.summarize` does the same with torch's kernels.
"""

from __future__ import annotations

import functools
import logging
import math
import os
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.statistics.native import dense
from lightning_hooks.statistics.rows import N_COLUMNS, Clock, Column

logger = logging.getLogger(__name__)

BLOCK = 1024
PROGRAMS = 1024
"""The most programs that share a tensor."""
_SHARE = 8  # blocks that a program reads at least: fewer are not worth a program

_TYPES = frozenset({torch.float32, torch.float64, torch.bfloat16, torch.float16})


class Fused:
    """The kernels, for plain dense tensors on one device. Two launches a tensor, whatever is asked of it.

    What a program finds goes into memory of torch's allocator, taken for the call: it is ordered on the stream, and safe in a
    CUDA graph.
    """

    def __init__(self) -> None:
        from lightning_hooks.statistics import fused_kernels

        self._kernels = fused_kernels
        self._columns: dict[str, Any] = {column.name: int(column) for column in Column}

    def readable(self, values: Tensor) -> bool:
        """Whether ``values`` can be read where they lie: a plain strided tensor without gaps."""
        return values.dtype in _TYPES and dense(values) and not values.is_neg()

    def accumulate(
        self,
        table: Tensor,
        index: int,
        values: Tensor,
        clock: Clock,
        calls: int = 1,
        low: float | None = None,
        high: float | None = None,
        saturable: int = 0,
        known: Tensor | None = None,
        unit_dim: int = 0,
    ) -> None:
        """Merge the summary of ``values`` into row ``index`` of ``table``, in place.

        Args:
            table: Float64, contiguous, shape ``(n_sites, n_columns)``, on the device of the values.
            index: The site.
            values: Readable; contiguous where units are asked for; not empty.
            clock: Tells the training batch.
            calls: What to add to the count of calls.
            low: Values at or below it count as saturated; None for none.
            high: Values at or above it count as saturated; None for none.
            saturable: How many values (or distributions) could be saturated.
            known: Boolean, one per unit, where the units that fired are marked; None for a site that is no rectifier.
            unit_dim: The dimension of the units in ``values``.
        """
        n = values.numel()
        programs = min(PROGRAMS, -(-n // (BLOCK * _SHARE)))
        rounds = -(-n // (BLOCK * programs))
        found = torch.empty((programs, self._kernels.PARTIAL), dtype=torch.float64, device=values.device)
        units = values.shape[unit_dim] if known is not None and values.dim() else 1
        bounded = low is not None or high is not None
        self._kernels.partials[(programs,)](
            values,
            n,
            rounds,
            found,
            math.nan if low is None else low,  # no value is at or below a NaN
            math.nan if high is None else high,
            found if known is None else known.view(torch.int8),
            units,
            math.prod(values.shape[unit_dim + 1 :]),
            BLOCK=BLOCK,
            WIDE=values.dtype == torch.float64,
            BOUNDS=bounded,
            UNITS=known is not None,
        )
        self._kernels.into_row[(1,)](
            found,
            programs,
            table[index],
            clock.tensor,
            calls,
            float(units if known is not None else 0),
            saturable,
            PROGRAMS=1 << (programs - 1).bit_length(),
            **self._columns,
        )


@functools.cache
def fused() -> Fused | None:
    """The fused path, tried once; None where there is no CUDA device or no Triton."""
    if os.environ.get("LIGHTNING_HOOKS_NATIVE", "1") == "0" or not torch.cuda.is_available():
        return None
    try:
        found = Fused()
        device = torch.device("cuda", torch.cuda.current_device())
        table = torch.zeros((1, N_COLUMNS), dtype=torch.float64, device=device)
        found.accumulate(table, 0, torch.ones(4, device=device), Clock(device))
    except Exception as error:  # noqa: BLE001  whatever it is, torch's kernels do the same
        logger.debug("the fused path cannot be used: %s", error)
        return None
    return found
