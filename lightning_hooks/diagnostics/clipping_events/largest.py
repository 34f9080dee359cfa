"""The steps of a window with the largest gradient norms, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lightning_hooks.clipping import ClipLedger
from lightning_hooks.clipping.watch import LARGEST, N_STEP_NUMBERS, largest_steps
from lightning_hooks.diagnostics.unusual import Found
from lightning_hooks.statistics.reduction import Merging, Span, Spans, TableIndex, paired

WIDTH = LARGEST * N_STEP_NUMBERS
"""The numbers of an optimizer."""


class LargestSteps:
    """The largest steps of each optimizer.

    Args:
        ledgers: Returns the ledgers of the optimizers.
        device: Where the table lives.
    """

    def __init__(self, ledgers: Callable[[], Sequence[ClipLedger]], device: torch.device | str) -> None:
        self._ledgers, self._device = ledgers, device

    @property
    def spans(self) -> Spans:
        """How packed tables merge: the steps of the rank with the largest norm, and the largest of all windows."""
        return (Span(WIDTH * len(self._ledgers()), _of_largest_rank, paired(_of_both)),)

    def pack(self) -> Tensor:
        """Return the window's numbers as one vector."""
        rows = [ledger.largest.flatten() for ledger in self._ledgers()]
        return torch.cat(rows) if rows else torch.empty(0, device=self._device)

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        for ledger, rows in zip(self._ledgers(), packed.view(-1, LARGEST, N_STEP_NUMBERS), strict=True):
            ledger.watch.largest = rows.to(ledger.watch.largest, copy=True)

    def reset(self) -> None:
        """Start a new window; the ledgers do."""


def found_in(packed: Tensor) -> list[list[Found]]:
    """The largest steps of each optimizer, of packed numbers on the host."""
    rows = packed.view(-1, LARGEST, N_STEP_NUMBERS).tolist()
    return [[(norm, int(batch), int(step)) for norm, batch, step in steps if norm >= 0] for steps in rows]


def _of_largest_rank(own: Tensor, _among: TableIndex) -> Merging:
    """The steps of the rank whose largest norm is the largest; the mean of several that have it, whose steps are the same."""
    rows = own.view(-1, WIDTH)
    highest = yield rows[:, 0]
    has_it = (rows[:, 0] == highest)[:, None]
    found = yield torch.cat((torch.where(has_it, rows, 0), has_it.to(own.dtype)), -1)
    yield own.new_empty(0)
    return (found[:, :-1] / found[:, -1:]).flatten()


def _of_both(earlier: Tensor, later: Tensor) -> Tensor:
    """The largest steps of two windows."""
    both = torch.cat((earlier.view(-1, LARGEST, N_STEP_NUMBERS), later.view(-1, LARGEST, N_STEP_NUMBERS)), 1)
    return torch.cat([largest_steps(rows).flatten() for rows in both]) if len(both) else earlier
