"""Numbers that say whether ranks hold the same parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.ranks import TOLERANCE, RankDifference, ReplicaTable, rank_difference, weight_marks
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows

NAMES = ["a", "b", "c"]


def packed(weights: Any = (1.0, 1.0, 1.0), gradients: Any = (), step: int = 3) -> Tensor:
    table = ReplicaTable(3)
    if len(gradients):
        table.add_gradients(torch.arange(len(gradients)), torch.tensor(gradients), step)
    table.add_weights(range(3), [torch.full((5,), weight) for weight in weights])
    return table.pack()


def merged(*tables: Tensor) -> RankDifference | None:
    return rank_difference(merge_ranks(ReplicaTable(3).spans, tables), NAMES)


def test_ranks_that_agree() -> None:
    assert merged(*[packed(gradients=[0.5, 0.0, math.nan])] * 64) is None
    assert merged(packed(), packed((1.0, 1.0, math.nan))) is None  # NaN is for other rules
    nearly = 1.0 + TOLERANCE / 2
    assert merged(packed(gradients=[0.5, 0.5, 0.5]), packed((1.0, nearly, 1.0), [0.5 * nearly, 0.5, 0.5])) is None


def test_the_first_parameter_that_differs() -> None:
    found = merged(packed(gradients=[0.5, 0.5]), packed((1.0, 1.0, 2.0), [0.5, 0.4]), packed(gradients=[0.5, 0.5]))
    assert found == RankDifference("b", "gradients", pytest.approx(0.2), 1, 1, 3)
    found = merged(packed(gradients=[0.5, 0.5]), packed((1.0, 1.0, 2.0), [0.5, 0.5]))
    assert found == RankDifference("c", "weights", pytest.approx(0.5), 0, 1, 3)
    assert merged(packed(gradients=[0.0]), packed(gradients=[0.1])) == RankDifference("a", "gradients", 1.0, 1, 0, 3)


def test_the_worst_of_two_windows() -> None:
    spans = ReplicaTable(3).spans
    fine, wrong = packed(gradients=[0.5, 0.5]), merge_ranks(spans, [packed(gradients=[0.5, 0.5]), packed(gradients=[0.5, 0.1])])
    other_steps = merge_ranks(spans, [packed((1.0, 3.0, 1.0), [0.5]), packed(gradients=[0.1], step=9)])
    for one, other in ((fine, wrong), (wrong, fine)):
        assert rank_difference(merge_windows(spans, one, other), NAMES) == rank_difference(wrong, NAMES)
    both = merge_windows(spans, other_steps, wrong)
    assert both.shape == fine.shape
    assert rank_difference(both, NAMES) == RankDifference("b", "gradients", pytest.approx(0.8), 1, 1, 3)
    again = merge_windows(spans, other_steps, other_steps)
    assert rank_difference(again, NAMES) == RankDifference("b", "weights", pytest.approx(2 / 3), 0, 1, 3)


SHAPES = [(3,), (), (0,), (40, 30), (8, 3, 3, 3), (200, 7)]


def test_marks_differ_as_much_as_the_weights() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=generator) for shape in SHAPES]
    weights[4] = weights[4].to(memory_format=torch.channels_last)
    before = weight_marks(weights)
    assert torch.equal(before, weight_marks([weight.clone() for weight in weights]))
    for share in (1e-3, 0.1):
        moved = [weight + share * torch.randn(weight.shape, generator=generator) for weight in weights]
        scaled = [weight * (1 + share) for weight in weights]
        for change in (moved, scaled):
            distance = (weight_marks(change) - before).abs()
            assert distance[2] == 0
            assert bool((distance[[0, 1, 3, 4, 5]] > share / 50).all())
            assert bool((distance < 50 * share).all())
    flipped = [-weight for weight in weights]
    assert bool(((weight_marks(flipped) - before).abs()[[0, 1, 3, 4, 5]] > 1e-3).all())
