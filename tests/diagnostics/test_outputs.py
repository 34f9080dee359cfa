"""What a cross entropy is given, against a slow reference in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.loss_inputs.predictions import (
    FEWEST_ROWS,
    MOST_NUMBERS,
    MOST_ROWS,
    LossInputs,
    OutputStats,
    is_across,
    measure,
    output_stats,
)
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows
from tests.support.calls import call_table


def rows_of(logits: Tensor, target: Tensor) -> list[tuple[list[float], Any]]:
    """Every row of a call with its label, as PyTorch orders them: sample by sample, position by position."""
    if logits.dim() == 1:
        return [(logits.double().tolist(), target.tolist())]
    soft = target.dim() == logits.dim()
    rows = logits.double().movedim(1, -1).reshape(-1, logits.shape[1]).tolist()
    labels = (target.double().movedim(1, -1).reshape(-1, logits.shape[1]) if soft else target.reshape(-1)).tolist()
    return list(zip(rows, labels, strict=True))


def reference(calls: list[tuple[Tensor, Tensor]], ignore_index: int = -100) -> dict[str, float]:
    """Each number by plain Python, from the rows that are measured."""
    found: dict[str, Any] = {"correct": [], "logits": [], "mixed": []}
    labels, ignored, ignored_calls = 0, 0, 0
    for logits, target in calls:
        rows = rows_of(logits, target)
        most = min(len(rows), MOST_ROWS, max(FEWEST_ROWS, MOST_NUMBERS // len(rows[0][0])))
        for number in range(most):
            x, label = rows[number * len(rows) // most]
            if isinstance(label, list):
                label = max(range(len(label)), key=label.__getitem__)
            top = max(x)
            if label == ignore_index or not math.isfinite(top) or any(math.isnan(value) for value in x):
                continue
            found["correct"].append(x.index(top) == label)
            found["mixed"].append(any(value > 0 for value in x) and any(-math.inf < value < 0 for value in x))
            found["logits"] += [value for value in x if math.isfinite(value)]
        if not target.is_floating_point():
            of_call = target.reshape(-1).tolist()
            labels, ignored = labels + len(of_call), ignored + of_call.count(ignore_index)
            ignored_calls += of_call.count(ignore_index) == len(of_call)
    rows = len(found["correct"])
    return {
        "calls": len(calls),
        "rows": rows,
        "max_logit": max(found["logits"], default=math.nan),
        "min_logit": min(found["logits"], default=math.nan),
        "zero_fraction": found["logits"].count(0.0)
        / (rows * max(logits.shape[-1 if logits.dim() == 1 else 1] for logits, _ in calls))
        if rows
        else math.nan,
        "mixed_signs": sum(found["mixed"]) / rows if rows else math.nan,
        "accuracy": sum(found["correct"]) / rows if rows else math.nan,
        "ignored_fraction": ignored / labels if labels else math.nan,
        "ignored_calls": ignored_calls,
    }


def measured(calls: list[tuple[Tensor, Tensor]], ignore_index: int = -100) -> OutputStats:
    table = call_table(LossInputs)
    for logits, target in calls:
        if logits.numel():
            table.add(1, measure(logits, target, ignore_index))
    rows = table.lines(table.pack())
    assert not rows[0][0]
    return output_stats(rows[1])


def check(stats: OutputStats, expected: dict[str, float], rel: float = 1e-5) -> None:
    found = {name: getattr(stats, name) for name in expected}
    assert found == pytest.approx(expected, rel=rel, abs=1e-6, nan_ok=True)


def labels(*shape: int, classes: int, ignored: float = 0.0) -> Tensor:
    target = torch.randint(classes, shape)
    return torch.where(torch.rand(shape) < ignored, -100, target)


def case(name: str, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    shapes = {
        "samples": ((24, 7), (24,)),
        "one sample": ((5,), ()),
        "tokens": ((3, 11, 40), (3, 40)),
        "pixels": ((2, 3, 9, 8), (2, 9, 8)),
        "many rows": ((900, 6), (900,)),
        "large vocabulary": ((40, MOST_NUMBERS // 10), (40,)),
    }
    shape, of_target = shapes[name]
    classes = shape[0] if len(shape) == 1 else shape[1]
    calls = 1 if name == "large vocabulary" else 2
    return [
        (torch.randn(shape).mul(3).to(dtype), labels(*of_target, classes=min(classes, 32), ignored=0.2 * len(of_target)))
        for _ in range(calls)
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["samples", "one sample", "tokens", "pixels", "many rows", "large vocabulary"])
def test_values(name: str, dtype: torch.dtype) -> None:
    calls = case(name, dtype)
    check(measured(calls), reference(calls))


def test_targets_that_are_probabilities() -> None:
    torch.manual_seed(0)
    calls = [(torch.randn(30, 5), torch.rand(30, 5).softmax(1)), (torch.randn(4, 5, 6), torch.rand(4, 5, 6).softmax(1))]
    check(measured(calls), reference(calls))
    assert math.isnan(measured(calls).ignored_fraction)


def test_masked_classes_and_broken_rows() -> None:
    logits, target = torch.randn(12, 6), torch.arange(12) % 3
    logits[:, 4] = -torch.inf
    logits[2], logits[5, 1] = torch.nan, torch.inf
    calls = [(logits, target)]
    stats = measured(calls)
    check(stats, reference(calls))
    assert stats.rows == 10
    assert math.isfinite(stats.min_logit)


@pytest.mark.parametrize("shape", [(24, 7), (5, 100), (3, 11, 6), (2, 3, 5, 4), (1, 4, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_along_which_dimension_logarithms_are_normalised(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(shape) * 2
    for dim in range(len(shape)):
        given = logits.log_softmax(dim).to(dtype)
        assert bool(is_across(given)) == (dim != 1 and shape[dim] > 1)
        assert not is_across(given.exp())
        assert not is_across(given * 0.8)
    assert not is_across(logits[0].flatten().log_softmax(0))  # one sample
    table = call_table(LossInputs)
    for of_logarithms in (False, True):
        labels = torch.zeros(shape[0], *shape[2:], dtype=torch.long)
        table.add(0, measure(logits.log_softmax(0), labels, of_logarithms=of_logarithms))
    assert output_stats(table.pack().tolist()).across == (shape[0] > 1)


def test_ranks_and_windows_merge_as_one() -> None:
    calls = case("samples", torch.float32) + case("pixels", torch.float32)
    tables = [call_table(LossInputs) for _ in range(5)]
    for table, (logits, target) in zip(tables, calls, strict=False):  # the last has none
        table.add(2, measure(logits, target))
        tables[-2].add(1, measure(logits, target))
    packed = [table.pack() for table in tables]
    for merged in (merge_ranks(tables[0].spans, packed), _in_a_row(tables[0], packed)):
        rows = tables[0].lines(merged)
        check(output_stats(rows[2]), reference(calls), rel=1e-6)
        assert rows[0][0] == 0
    back = call_table(LossInputs)
    back.unpack(packed[0])
    assert torch.equal(back.rows, tables[0].rows)
    back.reset()
    assert torch.equal(back.rows, call_table(LossInputs).rows)


def _in_a_row(table: LossInputs, packed: list[Tensor]) -> Tensor:
    merged = packed[0]
    for later in packed[1:]:
        merged = merge_windows(table.spans, merged, later)
    return merged
