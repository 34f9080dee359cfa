"""Functional sites of two ranks: numbered alike, whichever rank calls a function first (gloo on the CPU)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.rank_functional import run_case
from tests.support.reference import assert_same, everything

pytestmark = pytest.mark.ranks

PER_CALL = frozenset({"calls", "sampled_batches", "batches"})


def test_two_ranks_equal_one_process(two_ranks: Any) -> None:
    first, second = two_ranks["alike"]
    assert everything(first) == everything(second)
    expected = run_case("alike", world=1)
    assert len(first) == len(expected) == 3
    for found, one in zip(first, expected, strict=True):
        assert set(found.functions) == {"net/relu", "net/tanh"}
        assert_same(found.sites, one.sites, "sites", skip=PER_CALL)
    assert [report.sites["net/relu"].calls for report in first] == [6, 6, 12]  # of both ranks


def test_what_one_rank_calls_after_ranks_have_agreed_is_not_recorded(two_ranks: Any) -> None:
    first, second = two_ranks["late"]
    assert everything(first) == everything(second)
    assert ["net/tanh" in report.sites for report in first] == [False] * 3
