"""Lines of attention heads: calls, windows and ranks merge to the numbers of all rows together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.attention.heads import Head, product_heads
from lightning_hooks.diagnostics.attention.table import AttentionStats, AttentionTable
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows


def heads(number: int, spread: float = 1.0, count: int = 3) -> Tensor:
    torch.manual_seed(number)
    query, key = torch.randn(2, count, 5, 8) * spread, torch.randn(2, count, 5, 8)
    mask = torch.rand(2, 1, 5, 5) > 0.5
    mask[0, 0, 1], mask[1] = False, False
    return product_heads(query, key, mask)


def table(*calls: tuple[int, int, float]) -> AttentionTable:
    made = AttentionTable(4, 5)
    for site, number, spread in calls:
        made.add(site, heads(number, spread), half=site == 2)
    return made


def stats(packed: Tensor) -> dict[str, AttentionStats]:
    return AttentionTable(4, 5).read(packed, ["a", "b", "c"])


def test_the_numbers_of_a_site() -> None:
    found = stats(table((0, 1, 1.0), (0, 2, 4.0), (2, 3, 1.0)).pack())
    assert list(found) == ["a", "c"]
    first, second = heads(1), heads(2, 4.0)
    both = first + second
    a = found["a"]
    assert (a.calls, a.rows, a.half_precision, found["c"].half_precision) == (2, 20, False, True)
    assert a.max_logit == pytest.approx(float(torch.maximum(first, second)[:, Head.MAX].max()))
    assert a.begin_max_logit == pytest.approx(float(first[:, Head.MAX].max()))
    assert a.end_max_logit == pytest.approx(float(second[:, Head.MAX].max()))
    entropy = (both[:, Head.ENTROPY] / both[:, Head.JUDGED]).tolist()
    assert [head.entropy for head in a.heads] == pytest.approx(entropy)
    assert a.entropy == pytest.approx(sum(entropy) / 3)
    first_shares = (both[:, Head.FIRST] / both[:, Head.JUDGED]).tolist()
    assert [head.first_token_share for head in a.heads] == pytest.approx(first_shares)
    assert a.first_token_share == pytest.approx(sum(first_shares) / 3)
    assert a.masked_rows == pytest.approx(float(both[0, Head.MASKED]) / 20)
    assert a.masked_samples == 0.5
    assert a.nonfinite_rows == 0.0


@pytest.mark.parametrize("merge", [merge_windows, lambda spans, *tables: merge_ranks(spans, tables)])
def test_windows_and_ranks_merge(merge: object) -> None:
    parts = table((0, 1, 1.0), (1, 2, 2.0)), table((0, 3, 5.0), (2, 4, 1.0))
    whole = stats(table((0, 1, 1.0), (1, 2, 2.0), (0, 3, 5.0), (2, 4, 1.0)).pack())
    found = stats(merge(parts[0].spans, parts[0].pack(), parts[1].pack()))  # type: ignore[operator]
    assert set(found) == {"a", "b", "c"}
    for name, expected in whole.items():
        got = found[name]
        assert (got.calls, got.rows, got.half_precision) == (expected.calls, expected.rows, expected.half_precision)
        for ours, theirs in zip(got.heads, expected.heads, strict=True):
            assert (ours.max_logit, ours.entropy, ours.first_token_share) == pytest.approx(
                (theirs.max_logit, theirs.entropy, theirs.first_token_share), rel=1e-12
            )
        assert got.end_max_logit == expected.end_max_logit  # the later one, and the larger one
    if merge is merge_windows:
        assert found == whole
    else:
        assert found["a"].begin_max_logit == whole["a"].end_max_logit  # of ranks the largest


def test_a_window_goes_on_from_a_checkpoint() -> None:
    before = table((0, 1, 1.0))
    after = AttentionTable(4, 5)
    after.unpack(before.pack())
    assert torch.equal(after.pack(), before.pack())
    for each in (before, after):
        each.add(0, heads(2, 3.0), half=True)
    assert torch.equal(after.pack(), before.pack())
    after.reset()
    assert stats(after.pack()) == {}
    assert torch.equal(after.pack(), AttentionTable(4, 5).pack())
