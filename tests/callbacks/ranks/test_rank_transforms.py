"""The toolbox under DDP: ranks agree, and are one process on the joined data where that has a meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.rank_cases import batches
from tests.support.rank_transforms import gradients, ranges
from tests.support.reference import everything

pytestmark = pytest.mark.ranks


def test_ranges_agree_and_are_those_of_all_ranks(two_ranks: Any) -> None:
    first, second = two_ranks["ranges"]
    assert repr([report.sites for report in first.values()]) == repr([report.sites for report in second.values()])
    single = ranges(world=1)
    minmax = first["minmax"]
    assert set(minmax.sites) == {"net.first", "net.act", "net.second", "net.sometimes"}  # the last on one rank only
    assert minmax.sites["net.sometimes"].calls == 2
    for method in ("moving_average", "percentile"):
        for name, expected in single[method].sites.items():
            found = first[method].sites[name]
            assert found.count == expected.count
            width = expected.largest - expected.smallest
            assert found.smallest == pytest.approx(expected.smallest, abs=1e-6)
            assert found.largest == pytest.approx(expected.largest, abs=1e-6)
            # half a batch's extremes lie inside those of a whole one; a joined histogram is exact to a part of a bin
            slack = 0.35 if method == "moving_average" else 0.03
            assert found.min == pytest.approx(expected.min, abs=slack * width), (method, name)
            assert found.max == pytest.approx(expected.max, abs=slack * width), (method, name)
            assert found.min >= expected.min - 0.03 * width


def shards(case: str, steps: slice = slice(None)) -> Tensor:
    return torch.cat([x for pair in batches(case)[steps] for x, _ in pair]).double()


def assert_numbers(found: Any, x: Tensor) -> None:
    assert found.count == (len(x),) * x.shape[1]
    torch.testing.assert_close(torch.tensor(found.mean).double(), x.mean(0), rtol=1e-6, atol=1e-6)
    std = x.std(0, correction=0)
    torch.testing.assert_close(torch.tensor(found.std).double(), torch.where(std > 0, std, 1.0), rtol=1e-6, atol=0)


def test_learned_inputs_are_pooled_over_ranks(two_ranks: Any) -> None:
    first, second = two_ranks["normalizer"]
    assert everything(first) == everything(second)
    assert_numbers(first["uneven"]["net.first"], shards("uneven"))
    assert_numbers(first["even"]["net.first"], shards("even", slice(0, 2)))
    assert_numbers(first["one_rank_only"]["net.first"], shards("one_rank_only"))
    assert "net.sometimes" not in first["even"]
    marked = torch.cat([pair[1][0] for pair in batches("one_rank_only")[1:]]).double()  # what rank 1 alone has seen
    assert_numbers(first["one_rank_only"]["net.sometimes"], marked)


def test_a_checkpoint_amid_learning_counts_each_batch_once(two_ranks: Any) -> None:
    first, _ = two_ranks["normalizer"]
    assert first["state"]["sites"]["net.first"]["moments"][0].tolist() == [16.0] * 8
    assert_numbers(first["resumed"]["net.first"], torch.cat([shards("even", slice(0, 2)), shards("even")]))


def test_transformed_gradients_leave_the_ranks_with_the_same_weights(two_ranks: Any) -> None:
    first, second = two_ranks["gradients"]
    single = gradients(world=1)
    for name in first:
        for key, value in first[name].items():
            assert np.array_equal(value, second[name][key]), (name, key)
            if name in ("scale", "zero", "none", "noise"):  # noise at parameters is the same on every rank
                np.testing.assert_allclose(value, single[name][key], rtol=1e-4, atol=1e-6, err_msg=f"{name} {key}")
    for name in ("clamp", "noise", "noise at modules"):
        assert not np.array_equal(first[name]["net.first.weight"], first["none"]["net.first.weight"])
