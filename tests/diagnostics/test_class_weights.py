"""Weights of classes in a loss, and views in the place of a transpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from lightning_hooks.diagnostics.loss_inputs.predictions import class_weights
from lightning_hooks.diagnostics.loss_inputs.targets import weighted_down
from lightning_hooks.hooks.graph import viewed

LABELS = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2, -100])


@pytest.mark.parametrize(
    ("weights", "ratio"),
    [
        ([6.0, 2.0, 1.0], (36 + 4 + 1) / 9 / 3),
        ([1 / 6, 1 / 2, 1.0], 3 / 9 / (5 / 9)),
        ([1.0, 1.0, 1.0], 1.0),
        ([0.0, 2.0, 1.0], 5 / (3 * 1.5)),  # a class that does not count
    ],
)
def test_how_much_labels_weigh_over_classes(weights: list[float], ratio: float) -> None:
    found = class_weights(torch.tensor(weights), LABELS, -100)
    assert found is not None
    of_labels, of_classes = found.tolist()
    assert of_labels / of_classes == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("weight", "positives", "share"),
    [(0.1, 1, 1.0), (0.6, 1, 0.0), (0.1, 4, 0.0), (9.0, 1, 0.0), ([0.1, 9.0], 1, 0.5), ([0.1, 0.1, 0.1], 1, None), (None, 1, None)],
)
def test_rare_positives_that_are_weighted_down(weight: float | list[float] | None, positives: int, share: float | None) -> None:
    targets = torch.zeros(10, 2)
    targets[:positives] = 1
    found = weighted_down(None if weight is None else torch.tensor(weight), targets)
    assert (None if found is None else found.item()) == share


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda x: x.view(5, 4, 6), True),
        (lambda x: x.reshape(len(x), 4, -1), True),
        (lambda x: x.reshape(len(x), 4, -1).transpose(1, 2).flatten(0, 1), True),
        (lambda x: F.relu(x.view(5, 4, 2, 3)), True),  # tokens to a picture
        (lambda x: x.transpose(1, 2).reshape(5, 6, 4), True),
        (lambda x: x.transpose(1, 2), False),
        (lambda x: x.transpose(1, 2).contiguous(), False),
        (lambda x: x.flatten(0, 1), False),
        (lambda x: x.view(5, 6, 2, 2), False),  # heads
        (lambda x: torch.cat([x] * 3, 1)[:, :16].relu().view(5, 4, 4, 2, 2), False),  # 4 x 4 patches of 2 x 2 pixels
        (lambda x: x.view(5, 2, 6, 2), True),  # heads before positions
        (lambda x: (x @ torch.ones(4, 8)).view(5, 6, 2, 4).transpose(1, 2), False),
        (lambda x: x.view(5, 1, 6, 4), False),
        (lambda x: x.view(5, 4, 6).transpose(0, 1), False),  # as heads of multi-head attention, samples second
        (lambda x: F.pad(x, (1, 0)).view(5, 5, 6)[:, 1:], False),  # as relative positions are shifted
        (lambda x: x.view(5, 4, 6)[:, 1:], False),
        (lambda x: x[:, 1:].reshape(5, 4, 5), False),
        (lambda x: F.relu(x.transpose(1, 2)), False),
    ],
)
def test_a_view_that_mixes_up_dimensions(change: Any, found: bool) -> None:
    x = torch.randn(5, 6, 4, requires_grad=True) * 1
    assert (viewed((change(x) * 2).sum()) is not None) is found
    assert viewed(torch.zeros(())) is None
