"""The table of losses against lists of floats: over ranks, windows, checkpoints and windows too long for it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lightning_hooks.diagnostics.loss.report import RECENT, LossReport
from lightning_hooks.diagnostics.loss.table import (
    LOSS_SPAN,
    N_LOSS_NUMBERS,
    SLOTS,
    LossTable,
)
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows

NAN = math.nan


def filled(losses: Sequence[float | None], start: int = 0, table: LossTable | None = None, first: int = 0) -> LossTable:
    """A table of losses by batch, of which None is a batch without; the window begins with batch ``first`` of the epoch."""
    table = LossTable() if table is None else table
    for number, loss in enumerate(losses, start=start):
        table.step = 1000 + number
        if loss is not None:
            table.add(torch.tensor(loss))
        table.end_batch(number, first + number)
    return table


def reference(losses: Sequence[float]) -> dict[str, Any]:
    """The statistics of the losses of batches."""
    values = np.asarray([loss for loss in losses if math.isfinite(loss)], dtype=np.float64)
    bad = [place for place, loss in enumerate(losses) if not math.isfinite(loss)]
    stats: dict[str, Any] = {"count": len(values), "nonfinite_steps": len(bad), "first_nonfinite_batch": bad[0] if bad else None}
    stats["first_nonfinite_step"] = 1000 + bad[0] if bad else None
    numbers = (values.mean(), values.std(), values.min(), values.max(), values[-1]) if len(values) else [NAN] * 5
    return stats | dict(zip(("mean", "std", "min", "max", "last"), map(float, numbers), strict=True))


def assert_report(report: LossReport | None, losses: Sequence[float], recent: Sequence[float] | None = None) -> None:
    assert report is not None
    for name, value in reference(losses).items():
        found = getattr(report, name)
        assert found is None if value is None else found == pytest.approx(value, rel=1e-6, abs=1e-9, nan_ok=True), name
    assert report.recent == pytest.approx(tuple((losses if recent is None else recent)[-RECENT:]), nan_ok=True)


def noise(n: int, seed: int = 0) -> list[float]:
    return np.random.default_rng(seed).lognormal(size=n).astype(np.float32).astype(float).tolist()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 300, SLOTS, SLOTS + 1, SLOTS + 100])
@pytest.mark.parametrize("bad", [[], [3], [0, 40]])
def test_a_window(n: int, bad: list[int]) -> None:
    losses = noise(n)
    for place in bad:
        if place < n:
            losses[place] = math.inf if place else NAN
    packed = filled(losses).pack()
    assert packed.shape == (N_LOSS_NUMBERS,)
    assert_report(LossTable().read(packed), losses)


@pytest.mark.parametrize("n", [50, SLOTS])
def test_ranks_are_averaged_batch_by_batch(n: int) -> None:
    ranks = [noise(n, seed) for seed in range(3)]
    ranks[1][7] = NAN
    merged = merge_ranks((LOSS_SPAN,), [filled(losses).pack() for losses in ranks])
    assert_report(LossTable().read(merged), np.mean(ranks, 0).tolist())


def test_a_rank_with_fewer_batches() -> None:
    one, other = noise(30), noise(20, 1)
    merged = merge_ranks((LOSS_SPAN,), [filled(one).pack(), filled(other).pack()])
    expected = [*((a + b) / 2 for a, b in zip(one, other, strict=False)), *one[20:]]
    report = LossTable().read(merged)
    assert report is not None
    assert report.recent == pytest.approx(tuple(expected))
    assert report.mean == pytest.approx(np.mean([*one, *other]))  # every rank's value weighs the same


@pytest.mark.parametrize("sizes", [(20, 30), (64, 1, 7), (SLOTS - 5, 20), (SLOTS, SLOTS), (10, SLOTS + 70, 30), (SLOTS + 9, 5)])
def test_windows_in_a_row_are_one(sizes: tuple[int, ...]) -> None:
    losses = noise(sum(sizes))
    losses[12] = losses[40] = NAN
    table, merged, begin = LossTable(), None, 0
    for size in sizes:
        for number, loss in enumerate(losses[begin : begin + size]):
            table.step = 1000 + begin + number
            table.add(torch.tensor(loss))
            table.end_batch(number, begin + number)
        packed = table.pack()
        merged = packed if merged is None else merge_windows((LOSS_SPAN,), merged, packed)
        begin += size
        assert_report(LossTable().read(merged), losses[:begin])
        report = table.read(packed)
        assert report is not None
        assert report.recent == pytest.approx(tuple(losses[:begin][-RECENT:]), nan_ok=True)  # carried over from window to window
        table.reset()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("at", [0, 5, 70])
def test_a_checkpoint_within_a_window(world: int, at: int) -> None:
    """Rank 0 takes the merged table, the others go on with an empty one."""
    before = noise(300, 9)
    ranks = [noise(90, seed) for seed in range(world)]
    tables = []
    for losses in ranks:
        table = filled(before)
        table.read(table.pack())
        table.reset()
        tables.append(filled(losses[:at], table=table))
    merged = merge_ranks((LOSS_SPAN,), [table.pack() for table in tables])
    again = []
    for rank, table in enumerate(tables):
        resumed = LossTable()
        resumed.load(table.state())
        if rank == 0:
            resumed.unpack(merged)
        again.append(resumed)
    restored = merge_ranks((LOSS_SPAN,), [table.pack() for table in again])
    torch.testing.assert_close(restored, merged, equal_nan=True)
    for table, losses in zip(again, ranks, strict=True):
        filled(losses[at:], at, table)
    expected = np.mean(ranks, 0).tolist()
    report = LossTable().read(merge_ranks((LOSS_SPAN,), [table.pack() for table in again]))
    assert_report(report, expected, [*before, *expected])


def validated(table: LossTable, values: Sequence[float], step: int = 10, start: int = 0) -> None:
    for number, value in enumerate(values):
        filled([2.0 + number] * step, start + number * step, table)
        table.end_validation(torch.tensor(value), torch.tensor(-value))


def known(report: LossReport | None) -> list[tuple[float, ...]]:
    assert report is not None
    return [dataclasses.astuple(one) for one in report.validations]


def test_validations_are_kept_with_the_training_loss_before_them() -> None:
    tables = [LossTable(), LossTable()]
    validated(tables[0], [1.0, 2.0, 3.0])
    validated(tables[1], [3.0, 4.0, 5.0])
    merged = merge_ranks((LOSS_SPAN,), [table.pack() for table in tables])
    expected = [(2.0, 2.0, -2.0), (3.0, 2.5, -3.0), (4.0, 3.0, -4.0)]
    assert known(LossTable().read(merged)) == pytest.approx(np.asarray(expected))
    tables[0].read(tables[0].pack())
    tables[0].reset()
    filled([5.0] * 30, 0, tables[0])
    tables[0].end_validation(torch.tensor(9.0))
    again = LossTable()
    again.load(tables[0].state())
    again.unpack(tables[0].pack())
    for table in (tables[0], again):
        assert known(table.read(table.pack()))[-2:] == pytest.approx(np.asarray([(3.0, 3.0, -3.0), (9.0, 4.0, NAN)]), nan_ok=True)
