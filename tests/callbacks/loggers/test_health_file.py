"""health.json in the log directory: at each window, at the end and at a crash; the line on standard output; status."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_hooks import TrainingMonitor, monitors
from lightning_hooks.__main__ import main
from lightning_hooks.run_report import page, read_run
from lightning_hooks.run_report.verdict import judge
from tests.support.models import Classifier, loader, mlp, trainer

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/guides/health.schema.json").read_text(encoding="utf-8"))


class Dying(nn.Module):
    """A net whose rectifier is dead from the start."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.act = nn.ReLU()  # created here
        self.fc2 = nn.Linear(16, 3)
        nn.init.constant_(self.fc1.bias, -20.0)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))


class Fails(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.global_step == 10:
            raise KeyError("/home/me/secret")
        return super().training_step(batch, batch_idx)


class Reads(Callback):
    """Keeps what health.json says at the start of each epoch."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.found: list[Any] = []

    def on_train_epoch_start(self, *_: Any) -> None:
        self.found.append(json.loads(self.file.read_text()) if self.file.exists() else None)


def fit(folder: Path, model: Any = None, callbacks: Any = None, epochs: int = 3, **kwargs: Any) -> Path:
    """Train, and return where the run's own files are."""
    callbacks = [TrainingMonitor(every_n_steps=1, summary=False)] if callbacks is None else callbacks
    run = trainer(callbacks, max_epochs=epochs, **{"logger": CSVLogger(folder, name="", version="run"), **kwargs})
    run.fit(model or Classifier(Dying()), loader())
    return folder / "run" / "lightning_hooks"


def test_it_is_rewritten_at_each_window(tmp_path: Path) -> None:
    reads = Reads(tmp_path / "run" / "lightning_hooks" / "health.json")
    folder = fit(tmp_path, callbacks=[*monitors(every_n_steps=1, summary=False), reads])
    first, *later = reads.found
    assert first is None
    assert [(found["windows"], found["epoch"], found["training"], found["status"]) for found in later] == [
        (1, 0, "running", "critical"),
        (2, 1, "running", "critical"),
    ]
    last = json.loads((folder / "health.json").read_text())
    assert (last["windows"], last["epoch"], last["step"], last["training"]) == (3, 2, 21, "finished")
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("windows", [None, 3])
def test_it_says_what_report_json_says(windows: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False, report_every_n_steps=windows)
    folder = fit(tmp_path, callbacks=[monitor])
    written = (folder / "health.json").read_text()
    capsys.readouterr()
    assert main(["report", str(folder), "--json"]) == 0
    assert capsys.readouterr().out == written
    found = json.loads(written)
    Draft202012Validator(SCHEMA).validate(found)
    assert found["unit"] == ("epoch" if windows is None else "step")
    assert str(tmp_path) not in written
    dead = found["alerts"][0]
    created = 1 + Path(__file__).read_text().splitlines().index("        self.act = nn.ReLU()  # created here")
    assert (dead["kind"], dead["site"], dead["class"]) == ("dead", "net.act", "torch.nn.modules.activation.ReLU")
    assert dead["created_at"] == f"tests/callbacks/loggers/test_health_file.py:{created}"
    assert dead["defined_at"].startswith("torch/nn/modules/activation.py:")
    assert {alert["kind"] for alert in found["alerts"][1:]} >= {"zero"}
    assert found["loss"] == {"first": pytest.approx(found["loss"]["first"]), "last": pytest.approx(found["loss"]["last"])}
    assert "dead" in found["watched"][0]["kinds"]


def test_a_crash_is_in_it_and_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = TrainingMonitor(every_n_steps=1)
    with pytest.raises(KeyError):
        fit(tmp_path, Fails(mlp()), [monitor])
    text = (tmp_path / "run/lightning_hooks/health.json").read_text()
    found = json.loads(text)
    assert (found["status"], found["training"], found["error"]) == ("failed", "exception", "KeyError")
    assert "secret" not in text
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "lightning-hooks report" in line]
    assert line == f"Monitors: {monitor.verdict} More: lightning-hooks report {tmp_path / 'run'}"


def test_a_file_that_cannot_be_written_is_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = page.write_whole

    def full(path: Path, text: str) -> Path:
        if path.name == "health.json" and '"windows": 2' in text:
            raise OSError("No space left on device")
        return real(path, text)

    monkeypatch.setattr("lightning_hooks.session.run_record.write_whole", full)
    with pytest.warns(match="cannot be written: OSError: No space left on device"):
        folder = fit(tmp_path)
    assert json.loads((folder / "health.json").read_text())["windows"] == 1


def test_the_status_is_that_of_the_verdict(tmp_path: Path) -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    assert monitor.status == "unknown"
    folder = fit(tmp_path, callbacks=[monitor])
    assert monitor.status == "critical" == judge(read_run(folder)).status
    healthy = TrainingMonitor(every_n_steps=1, summary=False)
    fit(tmp_path / "b", Classifier(mlp(), lr=0.05), [healthy], epochs=4)
    assert (healthy.status, monitor.status) == ("healthy", "critical")
