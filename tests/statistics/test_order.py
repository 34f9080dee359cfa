"""The order of first calls, packed and merged over ranks."""

from __future__ import annotations

import pytest
import torch

from lightning_hooks.statistics.reduction import Span, largest, latest, merge_ranks
from lightning_hooks.statistics.tables import FirstCalls, parameters_in_order, positions, sites_in_order


def merged(*ranks: list[int], n: int = 6) -> list[int]:
    order = Span(n, largest, latest)
    return sites_in_order(merge_ranks((order,), [torch.tensor(positions(called, n)) for called in ranks]).tolist())


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([[2, 0, 1]], [2, 0, 1]),
        ([[2, 0, 1], [2, 0, 1]], [2, 0, 1]),
        ([[0, 1, 2], [1, 0, 2]], [0, 1, 2]),  # as they are numbered where ranks disagree
        ([[0, 1], [0, 4, 3, 1]], [0, 4, 3, 1]),  # what it did not call stands where another called it
        ([[0, 1, 2], [5, 4, 0, 1, 2]], [5, 4, 0, 1, 2]),
        ([[], [3, 1]], [3, 1]),
        ([[0, 1], [0, 2, 1], [0, 3, 1]], [0, 2, 3, 1]),
        ([[], []], []),
    ],
)
def test_what_only_some_ranks_called_comes_between_the_others(ranks: list[list[int]], expected: list[int]) -> None:
    assert merged(*ranks) == expected


def test_parameters_stand_with_their_modules() -> None:
    names = ["cls", "act.slope", "fc.weight", "fc.bias", "proj.weight", "scale", "out.in.weight"]
    order = ["fc", "act", "proj", "out"]
    assert parameters_in_order(names, order) == [
        *("cls", "fc.weight", "fc.bias", "act.slope", "proj.weight", "scale", "out.in.weight")
    ]


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[0, 1, 2]], [0, 1, 2]),
        ([[0, 3], [0, 1, 2, 3]], [0, 1, 2, 3]),  # two layers were dropped in the first batch
        ([[0, 1], [0, 1, 2]], [0, 1, 2]),
        ([[0, 1], [2, 0, 1]], [0, 1, 2]),  # before a batch's first site nothing is known
        ([[0, 2, 0, 1]], [0, 1, 2]),
        ([[0, 1, 2, 1, 3, 1, 4]], [0, 1, 2, 3, 4]),  # one activation after every layer
        ([[0, 1, 3, 1, 4, 1], [0, 1, 2, 1, 3, 1, 4, 1]], [0, 1, 2, 3, 4]),
    ],
)
def test_a_site_that_is_called_late_has_its_place(batches: list[list[int]], expected: list[int]) -> None:
    calls = FirstCalls()
    for batch in batches:
        calls.called.extend(batch)
        calls.take()
    assert list(calls) == expected
