"""`make gpu` where there is no device, nor any package but those that a machine with one has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
BARE = {"PYTHONPATH": str(Path(__file__).with_name("bare")), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
ON_A_DEVICE = {"kernels", "syncs", "callbacks"}
"""Parts that a machine without one skips."""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the parts run on the device, by `make gpu`")
def test_every_part_passes_or_says_what_it_lacks(tmp_path: Path) -> None:
    settings = {"OUT": str(tmp_path), "PYTHON": sys.executable, "SLOW": "8", "OMP_NUM_THREADS": "1", **BARE}
    command = ["bash", "tests/gpu/run.sh"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stdout
    results = {line["part"]: line["result"] for line in map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())}
    assert {part for part, result in results.items() if result == "skipped"} - {"library"} == ON_A_DEVICE
    assert {*results.values()} == {"passed", "skipped"}
    assert "skipped: no CUDA device" in (tmp_path / "syncs.txt").read_text()
    for name in ("kernels", "callbacks"):
        assert re.search(r"SKIPPED .*CUDA device", (tmp_path / f"{name}.txt").read_text())
    same = json.loads((tmp_path / "identity.json").read_text())
    assert {text for text in same.values() if not text.startswith("skipped")} == {"same"}
    assert json.loads((tmp_path / "nan.json").read_text())["samples"] == ["77"]
    values = json.loads((tmp_path / "values.json").read_text())
    assert values["checked"] == 60 * len(values["kernels"])


def test_hypothesis_and_others_are_hidden_from_a_bare_machine() -> None:
    """Else the test above shows nothing."""
    program = "from importlib.util import find_spec; print([find_spec(name) for name in ('hypothesis', 'tensorboard', 'pandas')])"
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | BARE, capture_output=True, text=True, check=True)
    assert done.stdout == "[None, None, None]\n"


def test_the_parts_together_take_eight_minutes_at_most() -> None:
    limits = re.findall(r"^part [a-z]+ (\d+) ", (ROOT / "tests/gpu/run.sh").read_text(), re.MULTILINE)
    assert len(limits) == 9
    assert sum(map(int, limits)) <= 480


def test_an_unknown_part_is_an_error(tmp_path: Path) -> None:
    settings = {"OUT": str(tmp_path), "PYTHON": sys.executable}
    command = ["bash", "tests/gpu/run.sh", "speed"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "there is no part 'speed'; the parts are versions, library, kernels," in done.stderr
