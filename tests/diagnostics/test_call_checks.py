"""Which calls of softmax and of dropout are found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.calls import (
    CheckedCalls,
    DropoutUse,
    PrecisionStats,
    PrecisionTable,
    SoftmaxUse,
    is_over_batch,
)
from lightning_hooks.statistics.reduction import merge_ranks
from tests.support.calls import call_table


def read(checks: CheckedCalls, field: str) -> dict[str, Any]:
    found: dict[str, Any] = checks.read(checks.pack())[field]
    return found


def scores(mask: Tensor, *before: int, least: float = -torch.inf) -> Tensor:
    """Scores of an attention, masked where ``mask`` is."""
    return torch.randn(*before, *mask.shape).masked_fill(mask, least)


LATER = torch.ones(6, 6, dtype=torch.bool).triu(1)  # queries are lines, keys are columns
PADDED = torch.zeros(5, 7, dtype=torch.bool)
PADDED[:, 5:] = True


def use_of(values: Tensor, dim: int | None, samples: int | None = None) -> SoftmaxUse | None:
    checks = call_table(CheckedCalls, 3)
    checks.softmax(1, values, dim, samples)
    return read(checks, "softmax").get("b")


@pytest.mark.parametrize("least", [-torch.inf, torch.finfo(torch.float16).min, -1e9, -1e4])
@pytest.mark.parametrize("mask", [LATER, PADDED])
def test_a_mask_and_the_dimension(mask: Tensor, least: float) -> None:
    for values in (scores(mask, 2, 3, least=least), scores(mask, least=least)):
        assert use_of(values, -1) == SoftmaxUse(1, 0, 0)
        assert use_of(values, -2) == SoftmaxUse(1, 0, 1)
        assert use_of(values.transpose(-1, -2), -2) == SoftmaxUse(1, 0, 0)  # keys before queries


@pytest.mark.parametrize(
    ("shape", "dim", "samples", "found"),
    [
        ((64, 10), 0, 64, True),
        ((64, 10), 1, 64, False),
        ((64, 10), 0, None, False),
        ((64, 10), 0, 32, False),
        ((64, 64), 0, 64, False),  # all samples with all others
        ((64, 1), 0, 64, False),  # a weight for each sample
        ((64,), 0, 64, False),
        ((64, 5, 10), 0, 64, True),
        ((1, 10), 0, 1, False),
    ],
)
def test_over_the_batch(shape: tuple[int, ...], dim: int, samples: int | None, found: bool) -> None:
    assert is_over_batch(torch.zeros(shape), dim, samples) is found
    use = use_of(torch.zeros(shape), dim, samples)
    assert use is not None
    assert use.over_batch == found


def test_dropout() -> None:
    checks = call_table(CheckedCalls, 2)
    checks.dropout(0, 0.0, training=False)  # told not to
    assert read(checks, "dropout").get("a") is None
    checks.dropout(0, 0.3, training=True)
    checks.dropout(0, 0.5, training=False)
    checks.dropout(0, 0.1, training=False, in_validation=True)
    assert read(checks, "dropout").get("a") == DropoutUse(0.5, 3, 1, 1)


def test_precision() -> None:
    def new_table() -> PrecisionTable:
        sites = [("relu", nn.ReLU()), ("a", nn.Linear(10, 10)), ("b", nn.Conv2d(3, 25, 2))]  # of 100 and 300 numbers
        return PrecisionTable(sites, "bf16-mixed")

    table = new_table()
    assert table.read(table.pack()) == {"precision": None}
    table.take(0, torch.zeros(2))  # no layer that multiplies
    assert table.read(table.pack()) == {"precision": None}
    table.take(1, torch.zeros(2, dtype=torch.bfloat16))
    assert table.read(table.pack()) == {"precision": PrecisionStats("bf16-mixed", 0.0, (), 1)}
    table.take(2, torch.zeros(2))
    table.take(2, torch.zeros(2, dtype=torch.float16))
    assert table.read(table.pack()) == {"precision": PrecisionStats("bf16-mixed", 150 / 400, ("b",), 2)}
    merged = merge_ranks(table.spans, [table.pack(), table.pack()])
    assert table.read(merged) == {"precision": PrecisionStats("bf16-mixed", 150 / 400, ("b",), 2)}
    back = new_table()
    back.unpack(table.pack())
    assert torch.equal(back.pack(), table.pack())
    back.reset()
    assert not back.pack().any()
