"""Places of parameters: kept by the parameter, then by the name."""

from __future__ import annotations

import torch
from torch import nn

from lightning_hooks.session.parameter_places import ParameterPlaces
from tests.support.models import mlp


def places(net: nn.Module) -> ParameterPlaces:
    found = ParameterPlaces(torch.device("cpu"))
    assert found.update(net, [])
    return found


def test_a_parameter_that_moves_keeps_its_place_and_its_name() -> None:
    net = mlp()
    found = places(net)
    net[0] = nn.Sequential(net[0], nn.Linear(16, 16))
    assert found.update(net, [])
    assert found.names[:2] == ["0.weight", "0.bias"]
    assert found.names[-2:] == ["0.1.weight", "0.1.bias"]
    assert found.index_of(net[0][0].weight) == 0
    assert not found.update(net, [])


def test_a_parameter_that_replaces_another_takes_over_its_place() -> None:
    net = mlp()
    found = places(net)
    net[2].weight = nn.Parameter(net[2].weight.detach().clone())
    assert not found.update(net, [])
    assert found.index_of(net[2].weight) == found.names.index("2.weight")


def test_a_name_whose_parameter_lives_elsewhere_is_not_given_twice() -> None:
    net = mlp()
    found = places(net)
    net[0] = nn.Sequential(net[0])
    net[0].register_parameter("weight", nn.Parameter(net[0][0].weight.detach().clone()))
    assert found.update(net, [])
    assert found.names[-1] == f"0.weight:{len(found.names) - 1}"
    assert found.index_of(net[0][0].weight) == 0
    assert found.index_of(net[0].weight) == len(found.names) - 1


def test_gone_parameters_leave_their_places() -> None:
    net = mlp()
    found = places(net)
    n = len(found.names)
    net[0] = nn.Identity()
    assert not found.update(net, [])
    assert len(found.names) == n
    assert [tensor is None for tensor in found.tensors()][:2] == [True, True]
