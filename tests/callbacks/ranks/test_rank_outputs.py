"""What a model puts out under DDP: every rank has the numbers of all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hooks.alerts import DropoutUse
from tests.diagnostics import test_outputs, test_representation
from tests.support.reference import everything

pytestmark = pytest.mark.ranks


def test_both_ranks_have_the_numbers_of_all(two_ranks: Any) -> None:
    first, second = two_ranks["report"]
    assert everything(first.outputs) == everything(second.outputs)
    assert set(first.outputs) == {"criterion/cross_entropy", "cross_entropy"}
    # The ranks' first batch does not count where they have called different losses in it: they agree on numbers after it.
    given = [call for rank in two_ranks["given"] for call in rank[1:]]
    test_outputs.check(first.outputs["criterion/cross_entropy"], test_outputs.reference(given, ignore_index=2))


def test_a_loss_that_one_rank_alone_calls(two_ranks: Any) -> None:
    _, calls = two_ranks["second"]
    assert calls
    found = two_ranks["report"][0].outputs["cross_entropy"]
    test_outputs.check(found, test_outputs.reference(calls[1:]))


def test_samples_and_dropout(two_ranks: Any) -> None:
    kept = [call for rank in two_ranks["kept"] for call in rank]
    for report in two_ranks["report"]:
        found = report.representations["net.first"]
        assert found.calls == len(kept)
        test_representation.check(found, kept)
        drops = report.dropout["net/dropout"]
        assert drops == DropoutUse(0.25, drops.calls, 0, 2)
        assert ("dropout_in_eval", "net/dropout") in {(alert.kind, alert.site) for alert in report.alerts}
