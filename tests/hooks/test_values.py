"""Numbers that modules and optimizers of users hold."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from lightning_hooks.hooks.tensors import as_number, has_values, read_number, stored_tensor, weights_of


def fake(*shape: int) -> Tensor:
    with FakeTensorMode():
        return torch.zeros(shape)


def freed() -> Tensor:
    tensor = torch.zeros(3)
    tensor.untyped_storage().resize_(0)
    return tensor


WITHOUT = {
    "lazy": nn.UninitializedParameter,
    "meta": lambda: nn.Parameter(torch.zeros(3, device="meta")),
    "fake": lambda: nn.Parameter(fake(3)),
    "freed": freed,
}


@pytest.mark.parametrize("made", WITHOUT.values(), ids=WITHOUT)
def test_tensors_without_values(made: Any) -> None:
    layer = nn.Linear(3, 3)
    layer.weight = nn.Parameter(made()) if type(made()) is Tensor else made()
    assert not has_values(layer.weight)
    assert stored_tensor(layer, "weight") is None
    assert [parameter is layer.bias for parameter in weights_of(layer)] == [True]


def test_a_stored_tensor() -> None:
    layer = nn.Linear(3, 3)
    assert stored_tensor(layer, "weight") is layer.weight
    assert stored_tensor(layer, "in_features") is None


class Drawn:
    """A setting that draws where it is used as a number."""

    def __float__(self) -> float:
        raise AssertionError

    __bool__ = __float__

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, 0.5),
        (2, 2.0),
        (np.float32(0.25), 0.25),
        (Fraction(1, 2), 0.5),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (1j, None),
        ("0.1", None),
        (None, None),
        ((0.1, 0.2), None),
        (np.ones(2), None),
        (len, None),
        (Drawn(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_of_the_host(value: Any, expected: float | None) -> None:
    assert as_number(value) == read_number(value) == expected
