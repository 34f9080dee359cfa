"""Which layers start as constants, and which frozen ones are as they were initialised."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.statistics.first_weights import FirstWeights, first_weights


def filled(layer: Any, value: float) -> Any:
    nn.init.constant_(layer.weight, value)
    return layer


def with_bias(layer: Any, bias: float) -> Any:
    nn.init.trunc_normal_(layer.weight, std=0.02)
    nn.init.constant_(layer.bias, bias)
    return layer


@pytest.mark.parametrize(
    ("layer", "number"),
    [
        (filled(nn.Linear(8, 8), 0.5), 0.5),
        (filled(nn.Conv2d(2, 8, 3), -0.25), -0.25),
        (filled(nn.ConvTranspose1d(8, 3, 3), 2.0), 2.0),
        (filled(nn.Linear(8, 8), 0.0), None),  # zeros are common, and have rules of their own
        (filled(nn.Linear(64, 1), 0.5), None),  # one output has none to be the same as
        (filled(nn.Conv2d(8, 8, 3, groups=8), 0.5), None),  # each sees another channel
        (filled(nn.Linear(4, 4), 0.5), None),  # too few numbers
        (filled(nn.Embedding(8, 8), 0.5), None),
        (nn.Linear(8, 8), None),
    ],
)
def test_constant(layer: nn.Module, number: float | None) -> None:
    found = first_weights(nn.Sequential(nn.Linear(8, 8), layer))
    assert found == FirstWeights({} if number is None else {"1": number}, ())


@pytest.mark.parametrize(
    "layer", [nn.Linear(16, 10), nn.Conv1d(8, 4, 3), nn.ConvTranspose2d(6, 5, 3), nn.Linear(16, 10, bias=False)]
)
def test_pytorch_s_own_initialisation_is_known_without_a_bias_of_zeros(layer: nn.Module) -> None:
    expected = () if isinstance(layer, nn.Linear) and layer.bias is None else ("0",)
    assert first_weights(nn.Sequential(layer).requires_grad_(False)).untrained == expected
    assert first_weights(nn.Sequential(layer).requires_grad_(True)).untrained == ()


@pytest.mark.parametrize(
    ("layer", "untrained"),
    [
        (with_bias(nn.Linear(16, 10), 0.0), True),
        (with_bias(nn.Linear(16, 10), 0.01), False),
    ],
)
def test_untrained(layer: nn.Module, untrained: bool) -> None:
    assert bool(first_weights(nn.Sequential(layer).requires_grad_(False)).untrained) is untrained


@pytest.mark.parametrize(("values", "found"), [([1.0, 1.0, 1.0], {"0.dt_bias": 1.0}), ([1.0, 1.0, 0.9], {}), ([1.0], {})])
def test_the_time_step_bias_of_a_state_space_layer(values: list[float], found: dict[str, float]) -> None:
    layer = nn.Module()
    layer.dt_bias, layer.scale = nn.Parameter(torch.tensor(values)), nn.Parameter(torch.ones(3))
    assert first_weights(nn.Sequential(layer)).constant == found


def test_a_lazy_layer_is_left_out() -> None:
    assert first_weights(nn.Sequential(nn.LazyLinear(10))) == FirstWeights({}, ())


def test_a_layer_that_has_trained_is_not_as_it_was_initialised() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 10)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(20):
        x = torch.randn(32, 16)
        torch.autograd.backward(nn.functional.mse_loss(layer(x), x[:, :10]))
        optimizer.step()
        optimizer.zero_grad()
    assert first_weights(nn.Sequential(layer).requires_grad_(False)).untrained == ()
