"""The numbers of attention heads, against numpy in float64 on the same rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.attention.heads import MEASURED, MOST_ROWS, Head, grid, product_heads, written_out_heads
from tests.support.attention import reference

MINUS = -math.inf


def assert_heads(heads: Tensor, expected: dict[Head, list[float]]) -> None:
    for column in MEASURED:
        assert heads[:, column].tolist() == pytest.approx(expected[column], rel=1e-5, abs=1e-5), column.name


def tensors(*shape: int, dtype: torch.dtype = torch.float32, spread: float = 1.0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(sum(shape))
    *lead, queries, keys, width = shape
    query, key = torch.randn(*lead, queries, width) * spread, torch.randn(*lead, keys, width) * spread
    return query.to(dtype), key.to(dtype)


def masks() -> Iterator[Any]:
    """Masks for 2 samples, 3 heads, 5 queries and 7 keys."""
    torch.manual_seed(0)
    allowed = torch.rand(2, 1, 5, 7) > 0.4
    allowed[0, :, 2] = False  # one row that sees nothing
    yield pytest.param(allowed, id="bool")
    yield pytest.param(torch.rand(5, 7) > 0.5, id="of two dimensions")
    yield pytest.param(torch.rand(2, 3, 5, 7) > 0.5, id="of each head")
    yield pytest.param(torch.rand(2, 1, 1, 7) > 0.5, id="padding")
    yield pytest.param(torch.randn(1, 3, 5, 7), id="a bias")
    smallest = torch.finfo(torch.float32).min
    yield pytest.param(torch.randn(1, 3, 5, 7) + torch.where(allowed, 0.0, smallest), id="a bias and a mask")
    yield pytest.param(torch.where(allowed, 0.0, MINUS), id="minus infinity")
    yield pytest.param(torch.where(allowed, 0.0, -10000.0), id="-10000")
    hidden = torch.ones(2, 1, 5, 7, dtype=torch.bool)
    hidden[1] = False
    yield pytest.param(hidden, id="a whole sample")


def added(mask: Tensor) -> Tensor:
    return torch.where(mask, 0.0, MINUS) if mask.dtype == torch.bool else mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("mask", [None, *masks()])
def test_a_product_with_a_mask(mask: Tensor | None, dtype: torch.dtype) -> None:
    query, key = tensors(2, 3, 5, 7, 8, dtype=dtype)
    given = mask if mask is None or mask.dtype == torch.bool else mask.to(dtype)
    logits = query.double() @ key.double().transpose(-1, -2) / math.sqrt(8)
    kept = query.clone(), key.clone()
    heads = product_heads(query, key, given)
    assert_heads(heads, reference(logits, None if given is None else added(given)))
    assert torch.equal(query, kept[0])
    assert torch.equal(key, kept[1])


@pytest.mark.parametrize("keys", [4, 5, 7])
def test_causal_products_see_the_keys_before_them(keys: int) -> None:
    query, key = tensors(2, 3, 5, keys, 8, spread=3.0)
    logits = query.double() @ key.double().transpose(-1, -2) * 0.5
    before = torch.where(torch.ones(5, keys, dtype=torch.bool).tril(), 0.0, MINUS)
    assert_heads(product_heads(query, key, causal=True, scale=0.5), reference(logits, before))
    both = torch.rand(2, 1, 5, keys) > 0.3
    assert_heads(product_heads(query, key, both, causal=True, scale=0.5), reference(logits, before + added(both)))


def test_groups_of_heads_share_keys() -> None:
    query, key = tensors(2, 6, 5, 5, 8)
    for groups in (1, 2, 3):
        shared = key[:, :groups]
        logits = query.double() @ shared.double().repeat_interleave(6 // groups, 1).transpose(-1, -2) / math.sqrt(8)
        assert_heads(product_heads(query, shared), reference(logits))


def test_of_large_batches_at_most_64_rows_are_taken() -> None:
    for samples, queries, keys in ((3, 100, 100), (100, 9, 5), (20, 40, 40), (1, 300, 20), (200, 1, 30), (9, 8, 4)):
        query, key = tensors(samples, 2, queries, keys, 4)
        chosen = grid(samples, queries)
        rows = [(int(sample), places.tolist()) for sample, places in zip(chosen.chosen[:, 0], chosen.queries, strict=True)]
        assert all(len(set(places)) == len(places) for _, places in rows)
        assert {places[-1] for _, places in rows} == {queries - 1}
        number = sum(len(places) for _, places in rows)
        assert MOST_ROWS / 2 < number <= MOST_ROWS
        mask = torch.rand(samples, 1, queries, keys) > 0.2
        logits = query.double() @ key.double().transpose(-1, -2) / 2
        assert_heads(product_heads(query, key, mask), reference(logits, added(mask), rows))
        assert_heads(written_out_heads((logits + added(mask)).float()), written_reference(logits, mask, rows))


def written_reference(logits: Tensor, mask: Tensor, rows: Any = None) -> dict[Head, list[float]]:
    """A row of which all keys are masked by minus infinity gives NaN."""
    expected = reference(logits, added(mask), rows)
    expected[Head.NONFINITE] = [a + b for a, b in zip(expected[Head.NONFINITE], expected[Head.MASKED], strict=True)]
    expected[Head.MASKED_NONFINITE] = expected[Head.MASKED]
    return expected


def test_every_row_is_taken_where_there_are_few() -> None:
    for samples, queries in ((1, 64), (64, 1), (8, 8), (2, 5), (9, 7), (1, 1)):
        chosen = grid(samples, queries)
        assert chosen.chosen[:, 0].tolist() == list(range(samples))
        assert chosen.queries.tolist() == [list(range(queries))] * samples


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fill", [MINUS, -1e9, "smallest"])
def test_logits_that_are_written_out(fill: Any, dtype: torch.dtype) -> None:
    query, key = tensors(2, 3, 5, 7, 8, spread=2.0)
    mask = torch.rand(2, 1, 5, 7) > 0.4
    mask[1, :, 3] = False
    scores = (query @ key.transpose(-1, -2)).to(dtype)
    filled = scores.masked_fill(~mask, torch.finfo(dtype).min if fill == "smallest" else fill)
    expected = written_reference(scores, mask) if fill == MINUS else reference(scores.double(), added(mask))
    kept = filled.clone()
    assert_heads(written_out_heads(filled), expected)
    assert torch.equal(filled, kept)


@pytest.mark.parametrize(("size", "masked"), [(2e3, 0.0), (30.0, 12.0)])
def test_logits_that_have_diverged_are_not_masked(size: float, masked: float) -> None:
    """All are below -9000: a mask adds one number to usual logits, and large ones differ."""
    scores = -1e4 + size * torch.randn(2, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    assert written_out_heads(scores.clamp(max=-9100.0))[:, Head.MASKED].sum() == masked
    mixed = torch.cat([scores[:1].clamp(max=-9100.0), torch.full((1, 1, 6, 4), -2e3)])  # no mask makes the second
    assert written_out_heads(mixed)[:, Head.MASKED].sum() == 0


def test_rows_that_are_not_finite_are_counted_and_leave_the_others_alone() -> None:
    query, key = tensors(2, 2, 4, 4, 8)
    query[0, 1, 2, 0], query[1, 0, 0, 0] = math.nan, math.inf
    logits = query.double() @ key.double().transpose(-1, -2) / math.sqrt(8)
    expected = reference(logits)
    assert expected[Head.NONFINITE] == [1.0, 1.0]
    assert_heads(product_heads(query, key), expected)
    assert_heads(written_out_heads(logits.float()), expected)
    output = torch.zeros(2, 2, 4, 8)
    output[0, 0, 3, 5] = math.nan
    assert product_heads(query, key, output=output)[:, Head.NONFINITE].tolist() == [2.0, 1.0]


def test_the_probabilities_are_those_of_pytorch() -> None:
    query, key = tensors(2, 2, 6, 6, 8)
    mask = torch.rand(2, 2, 6, 6) > 0.3
    mask[..., 0] = True
    shares = nn.functional.scaled_dot_product_attention(query, key, torch.eye(6).expand(2, 2, 6, 6), mask)
    rows = mask.sum(-1) > 1
    expected = (shares[..., 0] * rows).sum((0, 2))
    assert product_heads(query, key, mask)[:, Head.FIRST].tolist() == pytest.approx(expected.tolist(), rel=1e-5)
