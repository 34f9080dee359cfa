"""Features and pictures under DDP: every rank ends with the features of all, one rank draws, and training is what it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks.extraction.extracted import ExtractedFeatures
from tests.support.rank_cases import batches
from tests.support.rank_features import extracted, predicted
from tests.support.reference import everything

pytestmark = [pytest.mark.ranks, pytest.mark.filterwarnings("ignore:FeatureExtractor. there is no output of net.sometimes")]


def test_both_ranks_have_the_features_of_all_and_one_process_has_the_same(two_ranks: Any, tmp_path: Path) -> None:
    single = extracted(1, 0, tmp_path)
    for name in ("all", "first", "one_rank_only"):
        first, second = (found[name] for found in two_ranks["extracted"])
        assert everything(first) == everything(second)
        for site, values in first.sites.items():
            assert torch.equal(values.nan_to_num(7), second.sites[site].nan_to_num(7))
    first = two_ranks["extracted"][0]["all"]
    expected = single["all"]
    assert (first.seen, len(first)) == (22, 22)
    rows = [int((expected.fields["input"] == row).all(1).nonzero()) for row in first.fields["input"]]
    assert sorted(rows) == list(range(22))
    assert torch.equal(first.fields["label"], expected.fields["label"][rows])
    for site, values in expected.sites.items():
        torch.testing.assert_close(first.sites[site], values[rows])


def test_the_choice_is_bounded_over_all_ranks(two_ranks: Any) -> None:
    """The first are those that came first in the ranks' turns: the sizes are 4+4, 5+2, 1+6."""
    whole, first = (two_ranks["extracted"][0][name] for name in ("all", "first"))
    assert (len(first), first.seen) == (9, 22)
    shards = [torch.cat([step[rank][0] for step in batches("uneven")]) for rank in range(2)]
    turns = [shards[place % 2][place // 2] for place in range(9)]
    assert torch.equal(first.fields["input"], torch.stack(turns))
    for site, values in first.sites.items():
        assert torch.equal(values, whole.sites[site][:9])


def test_a_module_that_ran_on_one_rank_only_leaves_nan_for_the_other(two_ranks: Any) -> None:
    report = two_ranks["extracted"][0]["one_rank_only"]
    recorded = report.sites["net.sometimes"].isfinite().all(1)
    assert torch.equal(recorded, report.fields["input"][:, 0] > 50)
    assert 0 < int(recorded.sum()) < len(report)
    assert two_ranks["extracted"][0]["all"].silent == ("net.sometimes",)


def test_prediction_is_in_the_order_of_the_data_and_one_rank_writes(two_ranks: Any, folder: Path, tmp_path: Path) -> None:
    first, second = two_ranks["predicted"]
    single = predicted(1, 0, tmp_path)
    assert first.fields["index"].tolist() == single.fields["index"].tolist() == list(range(9))
    assert first.seen == 11
    assert torch.equal(first.sites["net.first"], second.sites["net.first"])
    torch.testing.assert_close(first.sites["net.first"], single.sites["net.first"])
    written = ExtractedFeatures.load(folder / "rank0" / "predicted" / "epoch=0.npz")
    assert torch.equal(written.sites["net.first"], first.sites["net.first"])
    assert not (folder / "rank1" / "predicted").exists()


def test_pictures_come_from_one_rank_and_weights_stay(two_ranks: Any, folder: Path) -> None:
    for rank, found in enumerate(two_ranks["looked"]):
        assert found["same"]
        assert found["maps"].sites["net.first"].shape == (2, 16)
        assert found["cam"].maps.shape == (2, 1, 1)
        pictures = sorted(path.name for path in (folder / f"rank{rank}" / "looked").rglob("*.png"))
        assert pictures == (["net.first.png", "net.first.png"] if rank == 0 else [])


def test_each_rank_traces_its_own_step_and_one_prints(two_ranks: Any) -> None:
    for rank, found in enumerate(two_ranks["debugged"]):
        assert found["same"]
        assert found["printed"] == (rank == 0)
        trace = found["trace"]
        recorded = trace.of("net.sometimes")
        assert bool(recorded) != ("net.sometimes" in trace.never_called)
    called = [bool(found["trace"].of("net.sometimes")) for found in two_ranks["debugged"]]
    assert sorted(called) == [False, True]  # that module ran on one rank only
