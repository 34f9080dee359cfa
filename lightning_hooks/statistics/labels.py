"""Targets that a cross entropy ignores, counted on the device."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.inputs import tensors_in
from lightning_hooks.statistics.rows import row_dtype

IGNORED = -100
"""The ``ignore_index`` of PyTorch's losses, and of the models of transformers, where nothing else is set."""

_LABELS = re.compile(r"label|target", re.IGNORECASE)


def label_tensors(batch: Any) -> list[Tensor]:
    """The integer tensors of a batch that are targets: the second of a pair, and those whose key has "label" or "target" in it."""
    found = []
    for place, tensor in tensors_in(batch):
        if _is_integer(tensor) and (_LABELS.search(place) or place == "[1]"):
            found.append(tensor)
    return found


class LabelTable:
    """Counts targets, and the batches all of whose targets are ignored. No host sync.

    Args:
        device: Where the numbers live.
    """

    n_sums = 4

    def __init__(self, device: torch.device | str = "cpu") -> None:
        # Batches, those that are ignored as a whole, targets, ignored targets.
        self._row = torch.zeros(self.n_sums, dtype=row_dtype(torch.device(device)), device=device)

    def add(self, targets: Iterable[Tensor], ignore_index: int) -> None:
        """Take up the targets of one batch.

        Args:
            targets: Their tensors; those of class probabilities, which cannot be ignored, are skipped.
            ignore_index: What marks an ignored one.
        """
        counts = [
            torch.stack([(values == ignore_index).sum(), torch.full((), values.numel(), device=values.device)])
            for values in map(plain_values, filter(_is_integer, targets))
            if values.numel()
        ]
        if counts:
            ignored, all_of_them = torch.stack([count.to(self._row.device) for count in counts]).sum(0)
            row = torch.stack((torch.ones_like(ignored), ignored == all_of_them, all_of_them, ignored))
            self._row += row.to(self._row.dtype)

    def sums(self) -> Tensor:
        """What is added up over ranks and windows, shape ``(4,)``."""
        return self._row

    def unpack(self, sums: Tensor) -> None:
        """Take up what :meth:`sums` gave."""
        self._row.copy_(sums)

    def reset(self) -> None:
        """Start a new window."""
        self._row.zero_()


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
