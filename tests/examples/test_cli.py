"""The LightningCLI example, through the real command line."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import AlwaysClipped, Dead, Vanishing
from lightning_hooks.run_report import read_run

FOLDER = Path(__file__).parents[2] / "examples" / "cli"
CONFIG = FOLDER / "config.yaml"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("cli_example", FOLDER / "main.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cli_example", module)
    spec.loader.exec_module(module)
    return module


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


@pytest.mark.filterwarnings("ignore:.*LightningCLI.s args.*", "ignore::DeprecationWarning")
def test_rules_and_thresholds_come_from_the_yaml(example: Any) -> None:
    cli = example.CLI(example.DigitsNet, example.Digits, args=["--config", str(CONFIG)], run=False, save_config_callback=None)
    (monitor,) = (callback for callback in cli.trainer.callbacks if isinstance(callback, TrainingMonitor))
    features, _, _, flow, clip = monitor.members
    general, of_head = (rule for rule in features.alerting.rules.rules if isinstance(rule, Dead) and rule.threshold != 0.5)
    assert (general.threshold, general.sites) == (0.25, "*")
    assert (of_head.threshold, of_head.sites, of_head.times, of_head.of) == (0.8, "head.*", 2, 3)
    assert [mute.kind for mute in features.alerting.rules.mutes] == ["silent", "zero"]
    (vanishing,) = (rule for rule in flow.alerting.rules.rules if isinstance(rule, Vanishing))
    assert vanishing.relative == 1e-5
    assert flow.settings.on_alert == "warn"
    (always,) = (rule for rule in clip.alerting.rules.rules if isinstance(rule, AlwaysClipped))
    assert always.threshold == 0.9


@pytest.mark.filterwarnings("ignore:.*LightningCLI.s args.*", "ignore::DeprecationWarning")
def test_the_configuration_is_printed_with_what_was_changed(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["fit", "--config", str(CONFIG), "--model.learning_rate", "0.5", "--trainer.max_epochs=3", "--print_config"]
    with pytest.raises(SystemExit) as stopped:
        example.CLI(example.DigitsNet, example.Digits, args=arguments, save_config_callback=None)
    assert stopped.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["model"]["learning_rate"] == 0.5
    assert printed["trainer"]["max_epochs"] == 3
    first = printed["trainer"]["callbacks"][0]
    assert first["class_path"] == "lightning_hooks.TrainingMonitor"
    assert first["init_args"]["every_n_steps"] == 5
    assert first["init_args"]["report_dir"] == "auto"
    assert {"kind": "dead", "threshold": 0.25} in first["init_args"]["rules"]


@pytest.mark.filterwarnings("ignore:.*LightningCLI.s args.*", "ignore::DeprecationWarning")
def test_a_wrong_threshold_is_rejected_before_training(example: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(CONFIG.read_text().replace("threshold: 0.25", "treshold: 0.25"))
    with pytest.raises((SystemExit, TypeError, ValueError)) as rejected:
        example.CLI(example.DigitsNet, example.Digits, args=["--config", str(wrong)], run=False, save_config_callback=None)
    assert "treshold" in str(rejected.value) or isinstance(rejected.value, SystemExit)
