"""Two ranks of a plain loop with DDP and FSDP2, and of Fabric, report what one process reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.hosts.test_loop_replay import BAD
from tests.support.rank_loops import BATCHES, CASES, CLIP, run
from tests.support.two_processes import run_twice

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[Any]]:
    return run_twice("tests.support.rank_loops", folder)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_report_what_one_process_does(case: str, found: dict[str, list[Any]], tmp_path: Path) -> None:
    first, second = found[case]
    one = run(case, 0, 1)
    for name in ("mean", "std", "min", "max", "rms", "zero_fraction"):
        for site, stats in one["features"].sites.items():
            own, other = first["features"].sites[site], second["features"].sites[site]
            assert getattr(own, name) == getattr(other, name), "both ranks have the same"
            assert getattr(own, name) == pytest.approx(getattr(stats, name), rel=1e-4, abs=1e-6), (site, name)
    for parameter, stats in one["gradients"].parameters.items():
        assert first["gradients"].parameters[parameter].norm == pytest.approx(stats.norm, rel=1e-4), parameter
        assert first["gradients"].parameters[parameter].steps == BATCHES
    assert first["gradients"].loss.mean == pytest.approx(one["gradients"].loss.mean, rel=1e-5)
    clips, expected = first["clipping"].optimizers["0-SGD"], one["clipping"].optimizers["0-SGD"]
    assert (clips.steps, clips.clipped_steps) == (expected.steps, expected.clipped_steps) == (BATCHES, BATCHES)
    assert clips.norm_before == pytest.approx(expected.norm_before, rel=1e-4)
    assert clips.norm_after == pytest.approx(CLIP, rel=1e-3)
    assert first["gradients"].alerts == second["gradients"].alerts == one["gradients"].alerts


def test_the_rank_with_the_bad_sample_writes_and_training_is_the_same(found: dict[str, list[Any]], folder: Path) -> None:
    for of_rank in found["replay"]:
        assert of_rank["with"]["left"] == of_rank["without"]["left"]
        assert of_rank["with"]["samples"] == (BAD,)
        assert of_rank["with"]["text"].startswith("log of 0 gives -inf in ")
    [capsule] = (folder / "lightning_hooks" / "capsules").iterdir()
    assert f"It was on rank {capsule.name[-1]}." in found["replay"][0]["with"]["text"]
