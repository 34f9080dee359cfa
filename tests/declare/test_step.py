"""The norms of an optimizer step's gradients."""

from __future__ import annotations

import pytest
import torch

from lightning_hooks.declare.step import Step


@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 0, 1], [1, 2]])
def test_norms_are_in_the_order_of_the_model_whatever_that_of_the_groups_is(indices: list[int]) -> None:
    parameters = [torch.zeros(4, requires_grad=True) for _ in indices]
    for place, parameter in zip(indices, parameters, strict=True):
        parameter.grad = torch.full((4,), place + 1.0)
    step = Step(0, 3, indices, [], parameters, None, False, False, 0)
    assert step.norms().tolist() == [2.0 * (place + 1) if place in indices else 0.0 for place in range(3)]
