"""The demo finds the fault that it plants, finds nothing in the healthy training, and leaves a report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT_SCIKIT_LEARN = """
import sys

sys.modules["sklearn"] = None  # importing it raises
from lightning_hooks.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.example
@pytest.mark.parametrize(
    ("options", "found", "accuracy"),
    [
        ([], r"Found: \[critical\] dead at net\.relu2 \(epoch 0, step 32, 99% likely\): net\.conv2\.bias is -2 ", (0, 50)),
        (["--healthy"], r"Found: nothing", (90, 100)),
    ],
)
def test_it_finds_what_it_plants_and_leaves_a_report(
    options: list[str], found: str, accuracy: tuple[int, int], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", WITHOUT_SCIKIT_LEARN, "demo", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    (line,) = re.findall(r"^Found: .*", done.stdout, re.MULTILINE)
    assert re.match(found, line)
    (share,) = re.findall(r"^Validation accuracy after 3 epochs: (\d+)%", done.stdout, re.MULTILINE)
    assert ("\n  seen: " in done.stdout and "\n  try: " in done.stdout) is not bool(options)
    assert accuracy[0] <= int(share) <= accuracy[1]
    (path,) = re.findall(r"^Health report: (.*)", done.stdout, re.MULTILINE)
    assert ("Dead units" in (tmp_path / path).read_text(encoding="utf-8")) is not bool(options)
    assert not done.stderr.strip(), "a first run shows no warnings"
