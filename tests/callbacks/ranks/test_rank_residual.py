"""The residual stream under DDP: both ranks have that of all values."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rank_residual import fit

pytestmark = [pytest.mark.ranks]


def test_both_ranks_have_the_stream_of_all_and_one_process_has_the_same(two_ranks: Any) -> None:
    first, second = two_ranks["report"]
    whole = fit(1, 0).residual
    assert first.residual == second.residual
    assert list(first.residual) == list(whole) == [f"net.blocks.{number}" for number in range(3)]
    for name, expected in whole.items():
        found = first.residual[name]
        assert found.calls == 2 * expected.calls
        for stat in ("rms", "largest", "write_ratio", "carried"):
            assert getattr(found, stat) == pytest.approx(getattr(expected, stat), rel=1e-5), stat
        assert found.channel_rms >= expected.channel_rms * (1 - 1e-6)  # of the largest channel of each half
        assert found.channel_rms == pytest.approx(expected.channel_rms, rel=0.2)
