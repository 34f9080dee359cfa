"""AttentionMonitor under DDP: both ranks report what all have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.attention import assert_stats, detailed, pooled

pytestmark = pytest.mark.ranks


def test_two_ranks_are_one(two_ranks: Any) -> None:
    layers = {f"net.layers.{name}" for name in ("causal/sdpa", "padded/sdpa", "eager/softmax")}
    for case, names in (("alike", layers), ("one_rank_only", {"net/softmax", *layers})):
        (first, of_first), (second, of_second) = two_ranks[case]
        assert first == second
        assert set(first.sites) == names
        begin = int(case == "one_rank_only")  # in the first batch sites have other numbers on the other rank
        for name, stats in first.sites.items():
            key = name.split(".")[-1].split("/")[0]  # "net" for the one that the second rank alone calls
            assert_stats(stats, pooled([call for kept in (of_first, of_second) for call in detailed(kept[key])[begin:]]))
