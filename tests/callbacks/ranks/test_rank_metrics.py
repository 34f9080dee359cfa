"""Metrics on two ranks: torchmetrics synchronises them, and no rank waits for one that has nothing to send."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.metrics import CASES, NAMES
from tests.support.rank_metrics import TWELVE

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_those_of_the_data_of_both(two_ranks: dict[str, list[Any]], name: str) -> None:
    expected = CASES[name][2]()
    for found in two_ranks["statistics"]:
        assert found[name] == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_a_module_that_one_rank_alone_calls_has_no_value(two_ranks: dict[str, list[Any]]) -> None:
    for found in two_ranks["one_rank_only"]:
        assert math.isnan(found["net.sometimes/SumMetric"])
        assert not math.isnan(found["net.first/TensorStatistics_mean"])


def test_one_that_raises_on_one_rank_is_disabled_on_both(two_ranks: dict[str, list[Any]]) -> None:
    first, second = two_ranks["with_a_fault"]
    assert first["texts"] == [
        "FeatureStatsMonitor: the metric at 'net.first/RaisesOnOneRank' raised RuntimeError: it raised on another rank; it is "
        "switched off and training goes on without it."
    ]
    assert second["texts"] == []  # rank 0 warns for all
    for found in (first, second):
        assert math.isnan(found["net.first/RaisesOnOneRank"])
    assert first["net.act/MeanMetric"] == second["net.act/MeanMetric"] > 0


def test_the_users_own_collection_and_the_training_are_the_same_to_the_bit(two_ranks: dict[str, list[Any]]) -> None:
    for without, observed in two_ranks["unchanged"]:
        assert all(torch.equal(a, b) for a, b in zip(without[0], observed[0], strict=True))
        assert without[1] == observed[1]
        assert without[2] == observed[2]
        assert without[2].keys() == set(TWELVE)
        assert torch.equal(without[3], observed[3])
