"""The tables of a window, merged over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_hooks.collectors.collector import Collector
from lightning_hooks.statistics.reduction import Stretch, Stretches, added, merged_over_ranks


def merged(*collectors: Collector[Any]) -> list[Tensor]:
    """The tables of all ranks, each with the histograms behind it: three collectives for all of them."""
    return merged_over_ranks(*map(_packed, collectors))


def _packed(collector: Collector[Any]) -> tuple[Stretches, Tensor]:
    if collector.histograms is None:
        return collector.stretches, collector.pack()
    counts = collector.histograms.pack()
    return (*collector.stretches, Stretch(len(counts), added)), torch.cat((collector.pack(), counts))


def split(collector: Collector[Any], packed: Tensor) -> tuple[Tensor, Tensor]:
    """Separate the table and the histograms' counts, along the last dimension."""
    if collector.histograms is None:
        return packed, packed.new_empty(0)
    size = packed.shape[-1] - collector.histograms.counts.numel()
    return packed[..., :size], packed[..., size:]
