"""The demo, run as a user runs it."""

from __future__ import annotations

import csv
import importlib.util
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SCRIPT = Path(__file__).parents[2] / "examples" / "digits.py"

# fault -> the severity, the kind and the site (a pattern) of the expected alert, and what it says to try. Exploding is a warning:
# the steps of AdamW do not depend on the scale of the gradient, and the loss falls.
EXPECTED = {
    "vanishing": ("warning", "representation_collapse", r"head\.stack\.\d+", "replace nn.Sigmoid by nn.ReLU"),
    "dying-relu": ("critical", "dead", r"head\.relu", "fill head.fc1.bias with 0"),
    "exploding": ("warning", "poor_init", r"head\.stack\.0", "initialise head.stack.0.weight, head.stack.2.weight, "),
    "nan": ("critical", "nonfinite", r"features\.conv1", "replace batch[0] by finite numbers"),
}


def run(tmp_path: Path, *arguments: str) -> tuple[str, Path]:
    """Run the script in ``tmp_path`` and return what it printed and the folder with its logs."""
    command = [sys.executable, str(SCRIPT), "--fast", "--log-dir", "logs", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "the console should be quiet"
    (logs,) = (tmp_path / "logs").glob("*/version_0")
    assert f"Logs: {logs.relative_to(tmp_path)} " in done.stdout
    assert "tensorboard --logdir logs" in done.stdout
    return done.stdout, logs


def epoch_rows(logs: Path, tag: str) -> list[float]:
    """The values of one tag in metrics.csv."""
    with (logs / "metrics.csv").open() as file:
        return [float(row[tag]) for row in csv.DictReader(file) if row[tag]]


def events(logs: Path) -> EventAccumulator:
    """What TensorBoard would read."""
    (file,) = logs.glob("events.out.tfevents.*")
    found = EventAccumulator(str(file))
    found.Reload()
    return found


@pytest.mark.example
def test_healthy_run_learns_raises_no_alert_and_logs_to_both_trackers(tmp_path: Path) -> None:
    printed, logs = run(tmp_path)
    accuracy = re.search(r"Validation accuracy ([\d.]+)% after 2 epochs", printed)
    assert accuracy is not None
    assert float(accuracy[1]) > 90
    closing = r"^Monitors: 2 epochs, no rule broken; the loss fell from [\d.]+ to [\d.]+\. More: lightning-hooks report "
    assert re.search(closing, printed, re.MULTILINE)
    assert "Open alerts: none\n" in printed
    assert re.search(r"Health report: .*report\.html", printed)

    written = events(logs)
    for tag in (
        "features/model/mean_median",
        "features/model/rms_worst",
        "gradient_flow/model/rms_median",
        "gradient_flow/model/update_ratio_worst",
        "gradient_flow/total_norm",
        "gradient_clip/rate",
    ):
        in_file = epoch_rows(logs, tag)
        in_events = [event.value for event in written.Scalars(tag)]
        assert len(in_file) == 2, f"{tag} once per epoch"
        assert in_events == pytest.approx(in_file, rel=1e-6)
        assert all(map(math.isfinite, in_file))
    assert all(value > 0 for value in epoch_rows(logs, "features/model/dead_fraction_worst")), "logged from the first dead unit on"
    ours = [tag for tag in written.Tags()["scalars"] if tag.startswith(("features/", "gradient_"))]
    assert len(ours) <= 100
    assert not any("/alerts/" in tag for tag in ours)
    assert epoch_rows(logs, "gradient_clip/steps") == [23.0, 23.0]
    assert max(epoch_rows(logs, "gradient_clip/norm_after_max")) <= 1.5 * (1 + 1e-3)


@pytest.mark.example
@pytest.mark.parametrize("fault", EXPECTED)
def test_planted_fault_is_found_where_it_was_planted(fault: str, tmp_path: Path, run_here: Callable[..., str]) -> None:
    severity, kind, site, cure = EXPECTED[fault]
    printed = run_here("digits", "--fault", fault)
    (logs,) = (tmp_path / "logs").glob("*/version_0")
    assert printed.startswith("Planted: ")
    found = re.search(
        rf"^Found:   \[{severity}\] {kind} at {site} \(epoch 0, step 23[^)]*\):\s(.+)^Val", printed, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    assert re.findall(r"^  (\w+): ", found[1], re.MULTILINE)[-1] == "try"
    assert " ".join(found[1].split()).partition("try: ")[2].startswith(cure)
    prefix = "gradient_flow" if kind == "poor_init" else "features"
    assert epoch_rows(logs, f"{prefix}/alerts/{kind}")[0] >= 1
    assert [event.value for event in events(logs).Scalars(f"{prefix}/alerts/{kind}")] == epoch_rows(logs, f"{prefix}/alerts/{kind}")


@pytest.mark.example
def test_a_fault_that_is_not_found_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("digits_demo", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    digits = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "digits_demo", digits)  # dataclasses look their module up
    spec.loader.exec_module(digits)
    assert digits.FAULTS.keys() == EXPECTED.keys()
    assert not digits.print_findings(digits.FAULTS["vanishing"], [])
    assert "Found:   no vanishing alert at head.stack." in capsys.readouterr().out
