"""What objects hold is read without running their code."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from lightning_hooks.hooks.attributes import contents, entries_of, in_training_mode, stored, stored_count


class Holder(nn.Module):
    """Ends the test if its code runs once it is closed."""

    on_the_class = 4
    closed = False

    def __init__(self) -> None:
        super().__init__()
        self.plain = 3
        self.parameter = nn.Parameter(torch.ones(2))
        self.register_buffer("buffer", torch.zeros(2))
        self.child = nn.Linear(2, 2)

    @property
    def computed(self) -> int:
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        assert not self.closed
        return super().__getattr__(name)


class Slotted:
    __slots__ = ("held", "unset")

    def __init__(self) -> None:
        self.held = 5


def test_where_an_attribute_is_stored() -> None:
    holder = Holder()
    held = vars(holder)
    held["closed"] = True
    assert (stored(holder, "plain"), stored(holder, "on_the_class")) == (3, 4)
    assert stored(holder, "parameter") is held["_parameters"]["parameter"]
    assert stored(holder, "buffer") is held["_buffers"]["buffer"]
    assert stored(holder, "child") is held["_modules"]["child"]
    assert [stored(holder, name, 7) for name in ("computed", "forward", "unknown")] == [7, 7, 7]
    assert stored(holder, "computed") is None
    assert [stored(Slotted(), name, 7) for name in ("held", "unset", "unknown")] == [5, 7, 7]
    assert contents(Slotted()) == {}


class Refused(nn.Module):
    """A parametrisation that lets nobody compute."""

    allowed = True

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        assert self.allowed
        return weight


def test_what_a_parametrised_tensor_is_computed_from() -> None:
    layer, refused = nn.Linear(2, 2), Refused()
    weight = layer.weight
    parametrize.register_parametrization(layer, "weight", refused)
    refused.allowed = False
    assert stored(layer, "weight") is weight
    assert stored(parametrizations.weight_norm(nn.Linear(2, 2)), "weight") is None  # from two
    assert stored(nn.LazyLinear(2), "weight") is not None
    pruned = prune.l1_unstructured(nn.Linear(2, 2), "weight", 1)
    assert stored(pruned, "weight") is vars(pruned)["weight"]


def test_in_training_mode() -> None:
    layer = nn.Linear(2, 2)
    assert in_training_mode(layer)
    assert not in_training_mode(layer.eval())


@pytest.mark.parametrize(("held", "number"), [(4, 4), (0, 0), (-1, 0), (True, 0), (2.0, 0), (None, 0), (torch.tensor(3), 0)])
def test_a_count_is_a_whole_number_above_zero(held: Any, number: int) -> None:
    holder = nn.Module()
    holder.heads = held
    assert stored_count(holder, "heads") == number


class EagerList(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise AssertionError


class EagerDict(dict[str, int]):
    def values(self) -> Any:
        raise AssertionError


class EagerMapping(UserDict[str, int]):
    def __getitem__(self, key: str) -> int:
        raise AssertionError


@pytest.mark.parametrize("container", [[1, 2], (1, 2), {1, 2}, {"a": 1, "b": 2}, MappingProxyType({"a": 1, "b": 2})])
def test_entries(container: Any) -> None:
    assert list(entries_of(container)) == [1, 2]


def test_the_entries_of_a_user_s_container_are_those_that_it_holds() -> None:
    assert list(entries_of(EagerList([1, 2]))) == [1, 2]
    assert list(entries_of(EagerDict(a=1))) == [1]
    assert list(entries_of(EagerMapping(a=1))) == [{"a": 1}]
