"""The table of optimizers, and second moments read of parts of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.gradients.tables import ParameterRows
from lightning_hooks.diagnostics.optimizer.table import OptimizerTable, second_moments
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows
from lightning_hooks.statistics.rows import N_PARAMETER_COLUMNS, ParameterColumn


def moments(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_steps_windows_and_ranks_merge_to_the_means_of_all_steps() -> None:
    whole, first, second = (OptimizerTable(2) for _ in range(3))
    steps = [(moments(3.0, 4.0), moments(1.5, 2, 10)), (moments(0.0, 1.0), moments(0.5, 4, 20)), (moments(2.0, 2.0), None)]
    for number, (updates, read) in enumerate(steps):
        for table in (whole, (first, second)[number > 0]):
            table.add(1, updates, 8, read)
    merged = merge_windows(first.spans, first.pack(), second.pack())
    none, found = whole.read(merged)
    assert none == (None, None, None)
    assert found == (pytest.approx(math.sqrt((25 + 1 + 8) / 24)), pytest.approx(1.0), pytest.approx(0.2))
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


def test_steps_that_are_not_finite_or_not_valid_do_not_count() -> None:
    table = OptimizerTable(1)
    table.add(0, moments(math.nan, 1.0), 8)
    table.add(0, moments(1.0), 8, moments(math.inf, 0, 1))
    table.add(0, moments(1.0), 8, valid=torch.tensor(False))
    assert table.read(table.pack()) == [(None, None, None)]
    table.add(0, moments(4.0), 4, valid=torch.tensor(True))
    assert table.read(table.pack()) == [(2.0, None, None)]


@pytest.mark.parametrize("made", ["own step", "capturable"])
def test_parameters_that_joined_later_have_their_own_correction(made: str) -> None:
    torch.manual_seed(0)
    early, late = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(5))
    optimizer = torch.optim.Adam([early, late], lr=1e-3)
    for number in range(4):
        early.grad = torch.randn(3, 4)
        late.grad = torch.randn(5) if number > 1 else None
        optimizer.step()
    if made == "capturable":
        optimizer.param_groups[0]["betas"] = (0.9, torch.tensor(0.999, dtype=torch.float64))
    found = second_moments(optimizer, {id(early), id(late)})
    squares = []
    for parameter, steps in ((early, 4), (late, 2)):
        v = optimizer.state[parameter]["exp_avg_sq"].double() / (1 - 0.999**steps)
        assert parameter.grad is not None
        squares.append((parameter.grad.double().square() / v).flatten())
    assert found is not None
    assert found.tolist() == pytest.approx([math.sqrt(torch.cat(squares).mean()), 0, 17], rel=1e-4)


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


def test_the_weights_of_the_later_window_count_if_it_has_an_update() -> None:
    rows = torch.zeros((3, 1, N_PARAMETER_COLUMNS), dtype=torch.float64)
    rows[0, 0, ParameterColumn.UPDATES] = rows[1, 0, ParameterColumn.UPDATES] = 1
    rows[:, 0, ParameterColumn.WEIGHT_NORM] = torch.tensor([5.0, 4.0, 0.0])
    rows[:, 0, ParameterColumn.RATIO_MAX] = torch.tensor([0.5, 0.1, 0.0])
    spans = ParameterRows(1).spans
    windows = merge_windows(spans, merge_windows(spans, rows[0, 0], rows[1, 0]), rows[2, 0])
    for merged in (ParameterColumn.merged(rows)[0], windows, merge_ranks(spans, list(rows[:, 0]))):
        assert merged[ParameterColumn.WEIGHT_NORM] == 4.0
        assert merged[ParameterColumn.RATIO_MAX] == 0.5
        assert merged[ParameterColumn.UPDATES] == 2
    nothing = merge_windows(spans, rows[2, 0], rows[2, 0])
    assert not nothing.any()
