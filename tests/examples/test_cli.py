"""The LightningCLI example, through the real command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightning_hooks.run_report import read_run

FOLDER = Path(__file__).parents[2] / "examples" / "cli"
CONFIG = FOLDER / "config.yaml"


@pytest.mark.example
def test_it_trains_as_its_yaml_says(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "main.py"), "fit", "--config", str(CONFIG), "--fast"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Health report: runs/cli/version_0/lightning_hooks/report.html") == 1
    assert "Open alerts: " in done.stdout
    run = read_run(tmp_path / "runs")
    assert run.epochs == [0, 1]
    assert run.fit["model"] == "DigitsNet"
    features, flow, clip = run.monitors
    assert features.last.sampled_batches == 5
    assert "encoder.4" in flow.last.modules
    assert flow.modules == "'encoder.*', 'head.*'"
    assert clip.last.optimizers["0-AdamW"].limit == 1.5
    assert (tmp_path / "runs/cli/version_0/config.yaml").is_file()
