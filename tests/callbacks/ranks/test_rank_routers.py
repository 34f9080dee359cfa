"""Routers and codebooks under DDP: both ranks report the choices of all, as one process does that sees the batches of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.rank_routers import CASES, run_case
from tests.support.reference import everything

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_have_the_choices_of_all(case: str, two_ranks: Any, tmp_path: Path) -> None:
    one, other = (rank["report"] for rank in two_ranks[case])
    assert everything(one) == everything(other)
    whole = run_case(1, 0, case)["report"]
    gate, expected = one.routers["net.mixture.gate"], whole.routers["net.mixture.gate"]
    assert (gate.calls, gate.tokens) == (2 * expected.calls, expected.tokens)  # each batch in two halves
    assert gate.load == pytest.approx(expected.load)
    book, alone = one.codebooks["net.quantise"], whole.codebooks["net.quantise"]
    assert (book.codes, book.usage, book.perplexity) == (alone.codes, alone.usage, pytest.approx(alone.perplexity))
    assert (one.sampled_batches, one.batches) == (3, 3)
