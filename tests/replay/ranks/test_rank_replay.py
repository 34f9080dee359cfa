"""Two ranks: the one with the bad sample writes, and both say the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.replay.planted import BAD
from tests.support.two_processes import run_twice

pytestmark = pytest.mark.ranks


def test_the_rank_with_the_bad_sample_writes_and_both_say_the_same(tmp_path: Path) -> None:
    found = run_twice("tests.support.rank_replay", tmp_path)
    assert found["with"] == found["without"]
    assert found["samples"] == [(BAD,), (BAD,)]
    assert found["text"][0] == found["text"][1]
    assert found["batch"][0] == found["batch"][1]
    [capsule] = (tmp_path / "capsules").iterdir()
    rank = int(capsule.name[-1])
    assert found["text"][0].endswith(f"1 of 8 inputs is 0. It was on rank {rank}.")
    record = json.loads((capsule / "capsule.json").read_text())
    assert record["bad_samples"] == [BAD]
    assert BAD in record["samples"]
