"""`make gpu` where there is no device: each part passes, or says what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
ON_A_DEVICE = {"kernels", "syncs", "callbacks"}
"""Parts that a machine without one skips."""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts run on the device, by `make gpu`")
def test_every_part_passes_or_says_what_it_lacks(tmp_path: Path) -> None:
    settings = {"OUT": str(tmp_path), "PYTHON": sys.executable, "SLOW": "4"}
    command = ["bash", "tests/gpu/run.sh"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout
    results = {line["part"]: line["result"] for line in map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())}
    assert {part for part, result in results.items() if result == "skipped"} - {"library"} == ON_A_DEVICE
    assert {*results.values()} == {"passed", "skipped"}
    same = json.loads((tmp_path / "identity.json").read_text())
    assert {text for text in same.values() if not text.startswith("skipped")} == {"same"}
    assert json.loads((tmp_path / "nan.json").read_text())["samples"] == ["77"]
    assert json.loads((tmp_path / "values.json").read_text())["checked"] == 60


def test_an_unknown_part_is_an_error(tmp_path: Path) -> None:
    settings = {"OUT": str(tmp_path), "PYTHON": sys.executable}
    command = ["bash", "tests/gpu/run.sh", "speed"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "there is no part 'speed'; the parts are versions, library, kernels," in done.stderr
