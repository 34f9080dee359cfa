"""What routers and codebooks choose, against plain loops in float64."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.routers.routing import CodebookStats, RouterStats, RoutingTable, choices_of
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows

EXPERTS, TOP_K = 5, 2


def entropy(shares: list[float]) -> float:
    return -sum(share * math.log(share) for share in shares if share > 0)


def reference(calls: list[Tensor], experts: int, top_k: int) -> dict[str, Any]:
    """Statistics of calls, each of the experts chosen, by loops over tokens."""
    counts: Counter[int] = Counter()
    dropped, tokens = 0, 0
    for chosen in calls:
        of_call = Counter(int(expert) for row in chosen for expert in row)
        dropped += sum(count for expert, count in of_call.items() if not 0 <= expert < experts)
        counts += Counter({expert: count for expert, count in of_call.items() if 0 <= expert < experts})
        tokens += len(chosen)
    kept = sum(counts.values())
    load = [counts[expert] / kept if kept else 0.0 for expert in range(experts)]
    return {
        "calls": len(calls),
        "tokens": tokens,
        "experts": experts,
        "top_k": top_k,
        "load": tuple(load),
        "dead_fraction": load.count(0.0) / experts,
        "max_load": max(load) * experts,
        "balance": entropy(load) / math.log(experts),
        "dropped_fraction": dropped / (tokens * top_k),
    }


def check(stats: RouterStats | None, expected: dict[str, Any], **close: float) -> None:
    assert stats is not None
    for name, value in expected.items():
        found = getattr(stats, name)
        assert found == (value if value is None else pytest.approx(value, **{"rel": 1e-5, "abs": 1e-6, **close})), name


def logits_of(tokens: int, seed: int = 0, dtype: torch.dtype = torch.float32, experts: int = EXPERTS) -> Tensor:
    values = 2 * torch.randn((tokens, experts), generator=torch.Generator().manual_seed(seed))
    values[:, 3] -= 100  # a dead expert
    return values.to(dtype)


def table_of(*outputs: Any, experts: int = EXPERTS, top_k: int = TOP_K, **options: Any) -> RoutingTable:
    table = RoutingTable([("gate", experts, top_k)], **options)
    for output in outputs:
        table.record(0, output)
    return table


def read(table: RoutingTable) -> RouterStats | None:
    return table.read(table.pack())[0].get("gate")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_largest_logits_are_the_choices(dtype: torch.dtype) -> None:
    calls = [logits_of(tokens, seed, dtype) for seed, tokens in enumerate((7, 1, 40))]
    expected = reference([logits.topk(TOP_K).indices for logits in calls], EXPERTS, TOP_K)
    assert expected["dead_fraction"] == 0.2
    stats = read(table_of(*calls))
    check(stats, expected)
    assert stats is not None
    assert stats.load.index(0.0) == 3


def test_a_dispatch_mask_says_what_was_dropped() -> None:
    mask = torch.eye(EXPERTS, dtype=torch.int64)[[0, 0, 1, 2]]
    mask[1] = 0
    stats = read(table_of(mask, top_k=1))
    assert stats is not None
    assert stats.load == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0, 0])
    assert (stats.dropped_fraction, stats.tokens) == (0.25, 4)


def test_what_never_ran_has_no_statistics_and_no_tokens_are_no_error() -> None:
    table = RoutingTable([("never", 4, 1), ("empty", 4, 2), ("book", 8, 0)])
    table.record(1, torch.empty(0, 4))
    routers, books = table.read(table.pack())
    assert list(routers) == ["empty"]
    assert not books
    assert routers["empty"] == RouterStats(1, 0, 4, 2, (0.0,) * 4, 1.0, 0.0, 0.0, 0.0)
    table.reset()
    assert table.read(table.pack()) == ({}, {})


def test_codes_are_counted() -> None:
    codes = torch.tensor([[0, 0, 3], [7, 0, 3]])
    table = RoutingTable([("gate", 3, 1), ("book", 8, 0)])
    table.record(1, [torch.randn(3), codes])
    table.record(1, codes[0])
    table.record(1, [torch.randn(3), torch.ones(2) > 0])  # no codes
    shares = [5 / 9, 3 / 9, 1 / 9]
    expected = CodebookStats(2, 9, 8, 3 / 8, math.exp(entropy(shares)), 5 / 9)
    found = table.read(table.pack())[1]["book"]
    assert (found.calls, found.codes, found.size, found.usage) == (expected.calls, expected.codes, expected.size, expected.usage)
    assert (found.perplexity, found.max_share) == (pytest.approx(expected.perplexity), pytest.approx(expected.max_share))


def test_tables_of_ranks_and_windows_merge_into_that_of_all_calls() -> None:
    calls = [logits_of(tokens, seed) for seed, tokens in enumerate((9, 4, 11))]
    tables = [table_of(call) for call in calls]
    whole = read(table_of(*calls))
    merged = merge_ranks(tables[0].spans, [table.pack() for table in tables])
    assert tables[0].read(merged)[0]["gate"] == whole
    merged = merge_windows(tables[0].spans, merge_windows(tables[0].spans, *(t.pack() for t in tables[:2])), tables[2].pack())
    table = RoutingTable([("gate", EXPERTS, TOP_K)])
    table.unpack(merged)
    assert read(table) == whole


WIDE, WEIGHTS, NUMBERS = torch.randn(6, 4), torch.rand(6, 2), torch.randint(0, 4, (6, 2))
LARGEST = WIDE.topk(2).indices


@pytest.mark.parametrize(
    ("tensors", "top_k", "expected", "dispatched"),
    [
        ([WIDE], 2, LARGEST, False),
        ([WIDE, WEIGHTS, NUMBERS], 2, NUMBERS, False),  # transformers
        ([NUMBERS, WEIGHTS, torch.tensor(0.1)], 2, NUMBERS, False),  # DeepSeek's own code
        ([WIDE.sigmoid(), WIDE], 2, LARGEST, False),  # Llama 4
        ([torch.arange(12), torch.arange(12), torch.rand(12), WIDE], 2, LARGEST, False),  # JetMoE
        ([torch.ones(2, 3, 4).long(), torch.rand(2, 3, 1), WIDE.view(2, 3, 4)], 1, torch.ones(6, 4), True),  # Switch
        ([WIDE, torch.arange(6)], 1, torch.arange(6)[:, None], False),
        ([WIDE, torch.rand(6, 4), torch.zeros(6, 4).long()], 4, torch.zeros(6, 4), False),  # every expert is chosen
    ],
)
def test_choices_are_found_in_an_output(tensors: Any, top_k: int, expected: Tensor, dispatched: bool) -> None:
    found = choices_of(tensors, 4, top_k)
    assert found is not None
    assert torch.equal(found[0].double(), expected.double())
    assert found[1] is dispatched


def test_an_output_without_either_is_none() -> None:
    assert choices_of([torch.randn(6, 3), torch.ones(6, 4) > 0], 4, 2) is None
