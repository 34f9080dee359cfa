"""One problem is one alert, with one beginning, wherever it is shown."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_hooks import Alert, monitors
from lightning_hooks.run_report import judge, read_run
from tests.support.models import Classifier, loader, trainer
from tests.support.pages import data_of, texts


class Breaks(nn.Module):
    """Its output is NaN for half of the samples in its fourth call, and for all of them later."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        bad = 0 if self.calls < 4 else len(x) // 2 if self.calls == 4 else len(x)
        return torch.cat([x[:bad] * torch.nan, x[bad:]])


@pytest.mark.parametrize("check", [None, 1])
def test_batch_step_and_value_are_those_of_the_first_occurrence_everywhere(
    check: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    reported: list[Alert] = []
    ours = monitors(every_n_steps=1, check_every_n_steps=check)
    for monitor in ours:
        monitor.subscribe(reported.append)
    net = nn.Sequential(nn.Linear(8, 8), Breaks(), nn.Linear(8, 3))
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer(list(ours), max_epochs=4, logger=CSVLogger(tmp_path, name="", version="")).fit(Classifier(net), loader())
    (alert,) = reported  # what the gradients and the clips have follows from it
    assert (alert.kind, alert.site, alert.epoch, alert.batch) == ("nonfinite", "net.1", 0, 3)
    assert alert.value < 1.0

    assert str(alert) in caplog.text
    printed = capsys.readouterr().out
    assert "Mul of nan at net.1, since epoch 0, batch 3." in printed
    assert f"Open alerts: [critical] nonfinite at net.1 (epoch 0, step {alert.step})\n" in printed

    folder = tmp_path / "lightning_hooks"
    (raised,) = map(json.loads, (folder / "alerts.jsonl").read_text().splitlines())
    first = judge(read_run(tmp_path)).problems[0].first
    for plain in (raised, first.record()):
        assert (plain["batch"], plain["since_step"], plain["message"]) == (alert.batch, alert.since_step, alert.message)
        assert plain["value"] == pytest.approx(alert.value, rel=1e-3)

    page = "\n".join(texts(data_of((folder / "report.html").read_text())))
    assert "since epoch 0, batch 3" in page
    assert alert.message[1:60] in page

    (table,) = (path for path in tmp_path.rglob("*.csv") if path.parent.name == "alerts")
    row = table.read_text()
    assert f",{alert.value}," in row
    assert f",{alert.since_step},{alert.batch}," in row
