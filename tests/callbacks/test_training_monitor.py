"""TrainingMonitor: the same as the list of monitors, in one callback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_hooks import TrainingMonitor, monitors
from lightning_hooks.alerts import ClipReport, FeatureReport, GradientFlowReport
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import everything


def fit(callbacks: list[Any], **kwargs: Any) -> Any:
    torch.manual_seed(0)
    model = Classifier(mlp())
    nn.init.constant_(model.net[0].bias, -20.0)  # its units are dead
    run = trainer(callbacks, **{"max_epochs": 2, "gradient_clip_val": 0.5, **kwargs})
    run.fit(model, loader())
    return run, model


def test_it_reports_logs_and_prints_what_the_list_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = []
    for name, make in (("list", monitors), ("one", lambda **kwargs: [TrainingMonitor(**kwargs)])):
        seen: list[str] = []
        ours = make(every_n_steps=2, on_alert=lambda alert, seen=seen: seen.append(str(alert)), report_dir=tmp_path / name)
        run, _ = fit(ours, logger=CSVLogger(tmp_path, name=name), log_every_n_steps=1)
        reports = [everything(member.report) for callback in ours for member in callback.members]
        printed = capsys.readouterr().out.replace(str(tmp_path / name), "")
        table = Path(run.logger.log_dir, "metrics.csv").read_text()
        outcomes.append((seen, reports, printed, table, {tag: float(value) for tag, value in run.callback_metrics.items()}))
    assert repr(outcomes[0]) == repr(outcomes[1])
    assert any("dead at net.1" in text for text in outcomes[1][0])


def test_its_reports_alerts_and_verdict() -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    assert (monitor.features, monitor.gradients, monitor.clipping, monitor.alerts, monitor.verdict) == (None, None, None, [], "")
    fit([monitor])
    assert isinstance(monitor.features, FeatureReport)
    assert isinstance(monitor.gradients, GradientFlowReport)
    assert isinstance(monitor.clipping, ClipReport)
    assert monitor.features.sites["net.1"].dead_fraction == 1.0
    assert monitor.clipping.optimizers["0-SGD"].steps == 7
    assert [alert.name for alert in monitor.alerts] == ["dead at net.1"]
    assert monitor.verdict == "Dead units at net.1, since epoch 0."
    assert {
        part: [report.epoch for report in reports if getattr(report, "sites", True)] for part, reports in monitor.history.items()
    } == {
        "features": [0, 1],
        "attention": [],
        "routers": [],
        "gradients": [0, 1],
        "clipping": [0, 1],
    }


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_it_goes_on_from_a_checkpoint_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    class Saves(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    whole = TrainingMonitor(every_n_steps=1, summary=False)
    fit([whole, Saves()], max_epochs=1)
    rest = TrainingMonitor(every_n_steps=1, summary=False)
    model = Classifier(mlp())
    run = trainer([rest], max_epochs=1, gradient_clip_val=0.5)
    run.fit(model, loader(), ckpt_path=tmp_path / "middle.ckpt", weights_only=True)
    assert rest.features.sites["net.0"].calls == whole.features.sites["net.0"].calls == 7
    assert rest.clipping.optimizers["0-SGD"].steps == 7
    assert [alert.name for alert in rest.alerts] == [alert.name for alert in whole.alerts]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"every_n_steps": 0}, ValueError, "every_n_steps must be at least 1"),
        ({"on_alert": "shout"}, ValueError, "on_alert must be one of log, warn, stop, raise"),
        ({"rules": "-dead"}, TypeError, "rules must be a list"),
        ({"logged": "everything"}, ValueError, "logged must be"),
    ],
)
def test_bad_input_is_an_error_at_construction(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        TrainingMonitor(**wrong)
