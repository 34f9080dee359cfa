"""Targets that a cross entropy ignores, counted on the device."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.diagnostics.batches.inputs import tensors_in
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.columns import SUM, Columns, RowTable

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


class LabelColumn(Columns):
    """What each number holds."""

    BATCHES = SUM
    IGNORED_BATCHES = SUM  # all of whose targets are
    TARGETS = SUM
    IGNORED = SUM


class LabelTable(RowTable):
    """Counts targets, and the batches all of whose targets are ignored. No host sync.

    Args:
        device: Where the numbers live.
    """

    columns: ClassVar[type[Columns]] = LabelColumn

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(1, device)

    def add(self, targets: Iterable[Tensor], ignore_index: int) -> None:
        """Record the targets of one batch.

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
            ignored, all_of_them = torch.stack([count.to(self.rows.device) for count in counts]).sum(0)
            row = torch.stack((torch.ones_like(ignored), ignored == all_of_them, all_of_them, ignored))
            self.rows[0] += row.to(self.rows.dtype)


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
