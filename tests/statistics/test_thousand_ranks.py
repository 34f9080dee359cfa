"""Tables of up to 4 096 simulated ranks, some empty, some without a layer or with NaN, against one process with all data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.reduction import Span, merge_ranks
from lightning_hooks.statistics.rows import N_COLUMNS, Clock, Column, empty_table

LAYERS = 6
SPANS = (Span(LAYERS * N_COLUMNS, Column.merge()),)


@pytest.fixture
def path() -> None:
    """No kernels here: one path is enough."""


def data_of(rank: int, layer: int, generator: torch.Generator) -> list[Tensor]:
    """What a layer puts out on a rank, call by call: nothing in a third of the cases."""
    chance = float(torch.rand((), generator=generator))
    if chance < 1 / 3 or rank % 7 == 3:
        return []
    x = torch.randn(1 + rank % 5, 3, generator=generator) * 10.0 ** (layer - 3) + layer
    if chance < 0.4:
        x[0, 0] = math.nan if rank % 2 else math.inf
    return [x, x.relu()]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 64, 1024, 4096])
def test_their_tables_are_that_of_one_process(ranks: int, assert_row: Any) -> None:
    generator = torch.Generator().manual_seed(ranks)
    kernels, clock = kernels_for("cpu"), Clock("cpu")
    tables, whole = [], [[] for _ in range(LAYERS)]  # type: tuple[list[Tensor], list[list[Tensor]]]
    for rank in range(ranks):
        table = empty_table(LAYERS)
        for layer in range(LAYERS):
            for call in data_of(rank, layer, generator):
                kernels.record(table, layer, call, clock)
                whole[layer].append(call)
        tables.append(table.reshape(-1))
    merged = merge_ranks(SPANS, tables).view(LAYERS, N_COLUMNS)
    for layer, calls in enumerate(whole):
        assert_row(merged[layer], *calls, rel=1e-5)
