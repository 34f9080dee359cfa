"""How much samples differ, against a slow reference."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.representations import (
    RepresentationStats,
    RepresentationTable,
    sample_grid,
)
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows


def grid_of(call: Tensor) -> tuple[slice, ...]:
    grid = sample_grid(tuple(call.shape), call.shape[0])
    assert grid is not None
    return grid


def reference(calls: list[Tensor]) -> dict[str, float]:
    """Each number by plain Python over the elements of the grid."""
    between, within, ratios = [], [], []
    for call in calls:
        samples = [sample.double().flatten().tolist() for sample in call[grid_of(call)]]
        units = []
        for sample in samples:
            size = math.sqrt(sum(value * value for value in sample) / len(sample))
            units.append([value / size for value in sample])
        between.append(statistics.mean(statistics.pvariance(column) for column in zip(*units, strict=True)))
        within.append(statistics.mean(statistics.pvariance(sample) for sample in units))
        ratios.append(between[-1] / within[-1])
    return {
        "calls": len(calls),
        "ratio": sum(between) / sum(within),
        "largest_ratio": max(ratios),
    }


def measured(calls: list[Tensor]) -> RepresentationStats:
    table = RepresentationTable(["a", "b"])
    for call in calls:
        table.size = len(call)
        table.take(1, call)
    table.finish()
    return table.read(table.pack())["representations"]["b"]


def check(stats: RepresentationStats, calls: list[Tensor]) -> None:
    expected = reference(calls)
    assert {name: getattr(stats, name) for name in expected} == pytest.approx(expected, rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(6, 9), (64, 300), (20, 40, 70), (5, 3, 31, 17), (4, 2, 2, 2, 2)])
def test_values(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    calls = [(torch.randn(shape) + 0.3 * torch.randn(shape[1:])).to(dtype) for _ in range(3)]
    check(measured(calls), calls)


def test_samples_that_are_the_same() -> None:
    torch.manual_seed(0)
    one = torch.randn(1, 64)
    assert measured([one.expand(32, 64)]).ratio == 0
    assert measured([one * torch.linspace(1, 3, 32)[:, None]]).ratio == pytest.approx(0, abs=1e-12)  # of one direction
    near = measured([one + 1e-3 * torch.randn(32, 64)]).ratio
    assert near == pytest.approx(1e-6, rel=0.3)


def test_ranks_and_windows_merge_as_one() -> None:
    torch.manual_seed(0)
    calls = [torch.randn(8, 20), 5 + torch.randn(8, 20), torch.randn(4, 30)]
    tables = []
    for call in calls:
        tables.append(RepresentationTable(["a", "b"]))
        tables[-1].size = len(call)
        tables[-1].take(1, call)
        tables[-1].finish()
    tables.append(RepresentationTable(["a", "b"]))  # a rank without samples
    packed = [table.pack() for table in tables]
    windows = packed[0]
    for later in packed[1:]:
        windows = merge_windows(tables[0].spans, windows, later)
    for merged in (merge_ranks(tables[0].spans, packed), windows):
        check(tables[0].read(merged)["representations"]["b"], calls)
    back = RepresentationTable(["a", "b"])
    back.unpack(packed[0])
    assert torch.equal(back.rows, tables[0].rows)
    back.reset()
    assert not back.rows.any()
