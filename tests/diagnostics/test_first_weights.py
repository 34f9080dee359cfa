"""Which layers start as constants, and which frozen ones are as they were initialised."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.diagnostics.setup.initial import first_weights, still_alike


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
    assert found[:2] == ({} if number is None else {"1": number}, {})


@pytest.mark.parametrize(
    ("layer", "untrained"),
    [
        (with_bias(nn.Linear(16, 10), 0.0), True),
        (with_bias(nn.Linear(16, 10), 0.01), False),
    ],
)
def test_untrained(layer: nn.Module, untrained: bool) -> None:
    assert bool(first_weights(nn.Sequential(layer)).made["0"]) is untrained


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell])
def test_the_matrices_of_recurrent_layers(kind: Any) -> None:
    layer = kind(16, 16)
    assert first_weights(nn.Sequential(layer)).constant == {}
    for parameter in layer.parameters():
        nn.init.ones_(parameter)
    matrices = [f"0.{name}" for name, parameter in layer.named_parameters() if "weight" in name]
    assert first_weights(nn.Sequential(layer)).constant == dict.fromkeys(matrices, 1.0)
    nn.init.zeros_(layer.get_parameter(matrices[0].removeprefix("0.")))
    assert first_weights(nn.Sequential(layer)).constant == dict.fromkeys(matrices[1:], 1.0)


@pytest.mark.parametrize(("zeros", "layers", "found"), [(2, 3, True), (2, 4, False), (3, 3, True), (1, 1, True), (1, 2, False)])
def test_zeros_count_where_most_layers_hold_them(zeros: int, layers: int, found: bool) -> None:
    """A head, or the last layer of each residual branch, may start at zero."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers)))
    for layer in model[:zeros]:
        nn.init.zeros_(layer.get_parameter("weight"))
    assert first_weights(model).constant == {str(place): 0.0 for place in range(zeros) if found}


def test_a_layer_that_has_trained_is_not_as_it_was_initialised() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(16, 10)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(20):
        x = torch.randn(32, 16)
        torch.autograd.backward(nn.functional.mse_loss(layer(x), x[:, :10]))
        optimizer.step()
        optimizer.zero_grad()
    assert first_weights(nn.Sequential(layer)).made == {"0": ""}


@pytest.mark.parametrize(
    ("net", "alike"),
    [
        (
            nn.Sequential(filled(nn.Linear(8, 16, bias=False), 0.1), nn.Tanh(), filled(nn.Linear(16, 4), 0.1)),
            ["0", "2"],
        ),  # one after the other
        (nn.Sequential(filled(nn.Linear(8, 16), 0.1), nn.Tanh(), nn.Linear(16, 4)), []),  # the next one makes units different
        (filled(nn.Linear(8, 16), 0.1), []),  # and so do targets
    ],
)
def test_units_that_stay_the_same(net: nn.Module, alike: list[str]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(copy.deepcopy(net))
    constant = first_weights(model).constant
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        x = torch.randn(32, 8)
        model(x).sub(x @ torch.randn(8, 4 if len(model.state_dict()) > 2 else 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert [name.removeprefix("0.") for name in still_alike(model, constant)] == alike
