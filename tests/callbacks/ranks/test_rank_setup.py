"""Ranks that get the same batches are found, and what only one rank sees of a model's setup is judged alike on all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import BatchCounts, LabelCounts, UnregisteredModules
from tests.support.reference import everything

pytestmark = pytest.mark.ranks


@pytest.mark.parametrize(
    ("case", "counts", "kinds"),
    [
        ("same", BatchCounts(8, 0, 2, 4, 4, 4), ["ranks_same_batch"]),
        ("distributed", BatchCounts(6, 0, 2, 4, 0, 0), []),
        ("one_batch", BatchCounts(8, 8, 2, 4, 4, 1), ["batch_repeated"]),
    ],
)
def test_ranks_with_the_same_batches(case: str, counts: BatchCounts, kinds: list[str], two_ranks: Any) -> None:
    for report in two_ranks[case]:
        assert replace(report.model_setup.batches, samples=0, seen=0, copies=0, distinct=0) == counts
        assert [alert.kind for alert in report.alerts if alert.severity != "info"] == kinds


def test_what_only_one_rank_sees(two_ranks: Any) -> None:
    one, other = two_ranks["apart"]
    assert everything(one) == everything(other)
    setup = one.model_setup
    assert setup.eval_modes == {"net.2": 1}  # in eval mode on both
    assert setup.unregistered == {"blocks": UnregisteredModules(1, 72, reached=True)}
    assert setup.labels == LabelCounts(8, 1, 64, 8)
    severities = {alert.kind: alert.severity for alert in one.alerts}
    assert {kind: severities[kind] for kind in ("eval_mode", "unregistered", "labels_ignored")} == {
        "eval_mode": "info",
        "unregistered": "warning",
        "labels_ignored": "info",
    }
