"""The table of optimizers, and second moments read of parts of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.optimizer.table import OptimizerTable, second_moments
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows


def moments(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_steps_windows_and_ranks_merge_to_the_share_over_all_steps() -> None:
    whole, first, second = (OptimizerTable(2) for _ in range(3))
    steps = [(moments(3.0, 4.0), moments(2, 10)), (moments(0.0, 1.0), moments(4, 20)), (moments(2.0, math.nan), moments(7, 7))]
    for number, (updates, read) in enumerate(steps):
        for table in (whole, (first, second)[number > 0]):
            table.add(1, read, updates)  # the last is not finite, and does not count
    merged = merge_windows(first.spans, first.pack(), second.pack())
    none, found = whole.read(merged)
    assert none is None
    assert found == pytest.approx(0.2)
    assert whole.read(whole.pack())[1] == found
    for world in (2, 3, 64):
        assert torch.equal(merge_ranks(first.spans, [merged] * world), merged)  # the same on every rank
    assert torch.allclose(merge_ranks(first.spans, [first.pack(), second.pack()]), merged)
    again = OptimizerTable(2)
    again.unpack(merged)
    assert torch.equal(again.pack(), merged)
    again.follow([1, None, 0])
    assert again.read(again.pack()) == [found, none, none]
    again.reset()
    assert again.read(again.pack()) == [none] * 3


def test_what_cannot_be_read_is_left_out() -> None:
    parameter, other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([parameter])
    assert second_moments(optimizer, {id(parameter)}) is None  # no step yet
    parameter.grad = torch.ones(4)
    optimizer.step()
    assert second_moments(optimizer, {id(other)}) is None
    assert second_moments(torch.optim.SGD([parameter]), {id(parameter)}) is None

    class Prodigy(torch.optim.SGD):
        """Keeps gradients times a scale of its own under Adam's name."""

    own = Prodigy([{"params": [parameter], "betas": (0.9, 0.999), "eps": 1e-8}])
    own.state[parameter] = {"step": 1, "exp_avg_sq": torch.ones(4)}
    assert second_moments(own, {id(parameter)}) is None
    optimizer.state[parameter]["exp_avg_sq"] = torch.ones(4, dtype=torch.uint8)
    assert second_moments(optimizer, {id(parameter)}) is None
    optimizer.state[parameter]["exp_avg_sq"] = torch.ones(1)
    assert second_moments(optimizer, {id(parameter)}) is None


def test_gradients_below_the_eps_of_adamax() -> None:
    """It keeps the largest gradient with eps added."""
    parameter = nn.Parameter(torch.ones(8))
    optimizer = torch.optim.Adamax([parameter], eps=0.1)
    for _ in range(3):
        parameter.grad = torch.tensor([0.0, 1e-3, 0.05, 0.09, 0.11, 0.2, -0.05, -3.0])
        optimizer.step()
    found = second_moments(optimizer, {id(parameter)})
    assert found is not None
    assert found.tolist() == [4, 7]
