"""Alerts as a habit: once, held, over, again; a line each; whole after a crash; nobody's fault is training's."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_hooks import Alert, FeatureStatsMonitor, monitors
from lightning_hooks.alerts import AlertError, FeatureReport
from tests.support.models import Classifier, loader, mlp, trainer

DEAD_IN = (0, 1, 4, 5, 8)
"""Reported in epoch 0; over in 3; reported again in 4, and not over in 5; over in 7, reported again in 8."""


class Wavering(Classifier):
    """Its rectifier is dead in some epochs."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), lr=0.0)

    def on_train_epoch_start(self) -> None:
        nn.init.constant_(self.net[0].bias, -100.0 if self.current_epoch in DEAD_IN else 0.0)


def events(folder: Path) -> list[tuple[str, str, int]]:
    lines = (folder / "lightning_hooks/alerts.jsonl").read_text().splitlines()
    return [(line["event"], line["kind"], line["epoch"]) for line in map(json.loads, lines) if line["kind"] == "dead"]


def waver(folder: Path, epochs: int, path: Path | None = None) -> tuple[Any, list[Any]]:
    ours = monitors(every_n_steps=1, summary=False, min_probability=0.5)
    run = trainer(ours, max_epochs=epochs, logger=CSVLogger(folder, name="", version=0), log_every_n_steps=1)
    run.fit(Wavering(), loader(n=16), ckpt_path=path, weights_only=True if path else None)
    return run, ours


EXPECTED = [
    ("raised", "dead", 0), ("cleared", "dead", 3), ("raised", "dead", 4), ("cleared", "dead", 7), ("raised", "dead", 8),
]  # fmt: skip


def test_fires_once_holds_clears_and_rearms(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        waver(tmp_path, 9)
    assert events(tmp_path / "version_0") == EXPECTED
    assert len([r for r in caplog.records if "] dead at net.1" in r.message]) == 5  # two of them that it ended


@pytest.mark.filterwarnings("ignore:Experiment logs directory")
@pytest.mark.parametrize("cut", [1, 2, 3, 6, 8])
def test_and_a_resumed_run_does_as_one_that_was_not_interrupted(tmp_path: Path, cut: int) -> None:
    run, _ = waver(tmp_path / "a", cut)
    run.save_checkpoint(tmp_path / "cut.ckpt")
    waver(tmp_path / "b", 9, tmp_path / "cut.ckpt")
    found = [entry for part in ("a", "b") if (tmp_path / part / "version_0/lightning_hooks/alerts.jsonl").exists()
             for entry in events(tmp_path / part / "version_0")]  # fmt: skip
    assert found == EXPECTED


def test_severities_decide_what_is_done() -> None:
    def all_of_them(report: FeatureReport) -> Any:
        for severity in ("info", "warning", "critical"):
            yield Alert(severity, "net.0", 1.0, 0.0, report.epoch, report.step, severity, "seen.")

    def info(report: FeatureReport) -> Any:
        yield from (alert for alert in all_of_them(report) if alert.severity == "info")

    seen: list[str] = []
    run = trainer([FeatureStatsMonitor(rules=[info], on_alert="raise", summary=False)], max_epochs=2)
    run.fit(Classifier(mlp()), loader())
    assert run.current_epoch == 2
    monitor = FeatureStatsMonitor(rules=[all_of_them], on_alert="raise", summary=False)
    monitor.subscribe(lambda alert: seen.append(alert.severity))
    with pytest.raises(AlertError) as raised:
        trainer([monitor]).fit(Classifier(mlp()), loader())
    assert [alert.severity for alert in raised.value.alerts] == ["critical", "warning"]
    assert sorted(seen) == ["critical", "info", "warning"]


@pytest.mark.parametrize(
    "wrong",
    [
        "oops",
        None,
        Alert("odd", "net.0", 1.0, 0.0, 0, 0, "dreadful", "…"),  # type: ignore[arg-type]
        Alert("odd", "net.0", 1.0, 0.0, 0, 0, "warning", "…", advice="Look"),  # type: ignore[arg-type]
        Alert("odd", "net.0", 1.0, 0.0, 0, 0, "warning", "…", advice=(3,)),  # type: ignore[arg-type]
        Alert("odd", "net.0", 1.0, 0.0, 0, 0, "warning", "…", title=3),  # type: ignore[arg-type]
        Alert("odd", "net.0", 1.0, 0.0, None, 0, "warning", "…"),  # type: ignore[arg-type]
    ],
)
def test_a_rule_that_gives_something_else_than_alerts_is_reported_once(wrong: Any) -> None:
    def odd(report: FeatureReport) -> Any:
        yield wrong

    model = Classifier(mlp())
    with pytest.warns(
        UserWarning, match="The rule odd raised TypeError: .*; its alerts are missing, and training goes on"
    ) as reported:
        trainer([FeatureStatsMonitor(rules=[odd], summary=False)], max_epochs=3).fit(model, loader())
    assert len([w for w in reported if "odd" in str(w.message)]) == 1
    assert len(model.losses) == 21


@pytest.mark.parametrize("check", [None, 1])
def test_a_subscriber_that_raises_harms_nobody(check: int | None) -> None:
    class Breaks(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx) * (torch.nan if batch_idx == 6 else 1.0)

    def broken(alert: Alert) -> None:
        raise KeyError("oops")

    models = []
    for observed in (True, False):
        torch.manual_seed(0)
        seen: list[Alert] = []
        ours = monitors(every_n_steps=1, summary=False, check_every_n_steps=check, on_alert="stop" if check else "log")
        for monitor in ours if observed else ():
            monitor.subscribe(broken)
            monitor.subscribe(seen.append)
        models.append(Breaks(mlp()))
        if observed:
            with pytest.warns(UserWarning, match="raised KeyError: 'oops'; training goes on"):
                trainer(ours, max_epochs=2).fit(models[0], loader())
            assert {"nonfinite", "loss_nonfinite"} & {alert.kind for alert in seen}
        else:
            trainer(ours, max_epochs=2).fit(models[1], loader())
    states = [model.state_dict() for model in models]  # NaN after a step that was not finite
    torch.testing.assert_close(states[0], states[1], rtol=0, atol=0, equal_nan=True)
    assert len(models[0].losses) == len(models[1].losses) == (7 if check else 14)


CRASH = """
import os, signal, sys
from pathlib import Path
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from lightning_hooks import monitors
from tests.callbacks.alerts.test_alert_states import Wavering
from tests.support.models import loader, trainer

class Crash(Callback):
    def on_train_batch_end(self, trainer, *args):
        if trainer.current_epoch == 5:
            os.kill(os.getpid(), signal.SIGKILL)

folder = Path(sys.argv[1])
logger = CSVLogger(folder, name="", version=0)
run = trainer([*monitors(every_n_steps=1), Crash()], max_epochs=9, logger=logger, log_every_n_steps=1)
run.fit(Wavering(), loader(n=16))
"""


def test_the_file_is_whole_after_a_crash_and_goes_on_after_a_torn_line(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CRASH, str(tmp_path)], env=env, capture_output=True, timeout=120)
    assert done.returncode == -9, done.stderr[-2000:]
    assert events(tmp_path / "version_0") == EXPECTED[:3]
    file = tmp_path / "version_0/lightning_hooks/alerts.jsonl"
    with file.open("a") as torn:
        torn.write('{"event": "rai')  # as a full disk leaves it
    with pytest.warns(UserWarning, match="Experiment logs directory"):
        waver(tmp_path, 2)
    lines = file.read_text().splitlines()
    assert lines.count('{"event": "rai') == 1  # alone in its line
    assert json.loads(lines[-1])["event"] == "raised"
