"""The table of a window, merged over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_hooks.collectors.collector import Collector
from lightning_hooks.metrics import PackedTable


def merged(collector: Collector[Any]) -> Tensor:
    """The table of all ranks, and the histograms behind it: one collective."""

    def merge(packed: Tensor) -> Tensor:
        if collector.histograms is None:
            return collector.merge_packed(packed)
        tables, counts = split(collector, packed)
        return torch.cat((collector.merge_packed(tables), counts.sum(0)))

    metric, packed = PackedTable(merge), collector.pack()
    metric.update(packed if collector.histograms is None else torch.cat((packed, collector.histograms.pack())))
    return metric.compute()


def split(collector: Collector[Any], packed: Tensor) -> tuple[Tensor, Tensor]:
    """Separate the table and the histograms' counts, along the last dimension."""
    if collector.histograms is None:
        return packed, packed.new_empty(0)
    size = packed.shape[-1] - collector.histograms.counts.numel()
    return packed[..., :size], packed[..., size:]
