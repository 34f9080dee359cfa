"""The merge over ranks: one packed tensor, one collective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric


class PackedTable(Metric):
    """A monitor's packed table of one epoch, merged over ranks by one ``all_gather``.

    torchmetrics' own gathering first exchanges sizes and waits at a barrier; the tables here have the same size on every rank by
    construction, so one collective is enough. Outside distributed training :meth:`compute` returns what was given.

    Args:
        merge: Takes the tables of all ranks, stacked in rank order, shape ``(world, m)``, and returns one, ``(m,)``.

    Example:
        >>> import torch
        >>> table = PackedTable(merge=lambda stacked: stacked.sum(0))
        >>> table.update(torch.tensor([1.0, 2.0]))
        >>> table.compute()
        tensor([1., 2.])
    """

    full_state_update = False
    table: Tensor

    def __init__(self, merge: Callable[[Tensor], Tensor], **kwargs: Any) -> None:
        super().__init__(dist_sync_fn=gather_same_size, compute_with_cache=False, **kwargs)
        self.add_state("table", torch.zeros(0), dist_reduce_fx=merge)

    def update(self, table: Tensor) -> None:
        """Set this rank's table."""
        self.table = table

    def compute(self) -> Tensor:
        """Return the table of all ranks together."""
        return self.table


def gather_same_size(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather a tensor that has the same shape on every rank: one collective."""
    gathered = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(gathered, tensor.contiguous(), group=group)
    return gathered
