"""One problem is one alert, with one beginning, wherever it is shown."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from lightning_hooks import Alert, FeatureStatsMonitor, monitors
from lightning_hooks.alerts import FeatureReport, Rule
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


def vanishing_at(sites: dict[int, str]) -> Any:
    """A rule that finds one problem, each epoch at another site."""

    def rule(report: Any) -> Any:
        if report.epoch in sites:
            yield Alert("vanishing", sites[report.epoch], 0.01, 0.1, report.epoch, report.step, "warning", "It vanishes.")

    return rule


class Save(Callback):
    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.save_checkpoint(self.path)


def test_a_site_that_moves_is_one_problem_also_over_a_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reported: list[Alert] = []

    def fit(epochs: int, path: Path | None = None) -> FeatureStatsMonitor:
        net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3))
        rule = vanishing_at({1: "net.2", 2: "net.1", 3: "net.0", 5: "net.1"})
        monitor = FeatureStatsMonitor(rules=[rule], report_dir=tmp_path)
        monitor.subscribe(reported.append)
        run = trainer([monitor, Save(tmp_path / "a.ckpt")], max_epochs=epochs)
        run.fit(Classifier(net), loader(), ckpt_path=path, weights_only=True if path else None)
        return monitor

    fit(3)
    monitor = fit(6, tmp_path / "a.ckpt")
    (alert,) = reported
    assert (alert.site, alert.epoch) == ("net.2", 1)
    assert monitor.report.alerts[0].site == "net.1"
    assert monitor.report.alerts[0].since_step == alert.since_step == 14
    closing = capsys.readouterr().out.rpartition("Monitors:")[2]
    assert "Open alerts: [warning] vanishing at net.2 (epoch 1, step 14)\n" in closing
    assert closing.startswith(" Vanishing gradients at net.2 and 2 more, since epoch 1. More: lightning-hooks report ")
    (problem,) = judge(read_run(tmp_path)).problems
    assert (problem.when, problem.sites) == ("since epoch 1", ("net.2", "net.1", "net.0"))


def test_a_problem_that_comes_back_is_shown_as_it_is_then(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The same kind at the same site, epochs later: another batch, another value, another message."""
    occurrences = {0: (1, 0.25), 6: (5, 0.75)}

    def rule(report: Any) -> Any:
        if report.epoch in occurrences:
            batch, value = occurrences[report.epoch]
            text = f"{value:.0%} of its output is odd."
            yield Alert(
                "odd", "net.1", value, 0.1, report.epoch, report.step, "warning", text, 7 * report.epoch + batch, batch=batch
            )

    reported: list[Alert] = []
    monitor = FeatureStatsMonitor(rules=[rule])
    monitor.subscribe(reported.append)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer([monitor], max_epochs=7, logger=CSVLogger(tmp_path, name="", version="")).fit(Classifier(net), loader())
    before, alert = reported
    assert (before.epoch, before.batch, before.since_step, before.value) == (0, 1, 1, 0.25)
    assert (alert.epoch, alert.batch, alert.since_step, alert.value) == (6, 5, 47, 0.75)

    assert str(alert) in caplog.text
    printed = capsys.readouterr().out
    assert "Odd at net.1, since epoch 6, batch 5 (also in epoch 0)." in printed
    assert "Open alerts: [warning] odd at net.1 (epoch 6, step 49)\n" in printed

    folder = tmp_path / "lightning_hooks"
    raised = [line for line in map(json.loads, (folder / "alerts.jsonl").read_text().splitlines()) if line["event"] == "raised"]
    (problem,) = judge(read_run(tmp_path)).problems
    assert problem.seen == "75% of its output is odd."
    assert problem.first is not None
    for plain in (raised[1], problem.first.record()):
        assert {key: plain[key] for key in alert.record()} == alert.record()

    page = "\n".join(texts(data_of((folder / "report.html").read_text())))
    assert "since epoch 6, batch 5 (also in epoch 0)" in page
    assert "75% of its output is odd." in page
    assert "25% of its output is odd." not in page

    _, table = sorted(path for path in tmp_path.rglob("*.csv") if path.parent.name == "alerts")
    row = table.read_text()
    assert ",0.75," in row
    assert ",47,5," in row


@pytest.mark.parametrize("within", [False, True], ids=["in a later epoch", "within an epoch"])
def test_a_problem_that_grows_graver_is_as_grave_wherever_it_is_shown(
    within: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A check within the epoch finds a warning, and the epoch's end, or a later epoch, something critical at the same site."""

    @dataclass(frozen=True, slots=True, eq=False)
    class Odd(Rule):
        kind: ClassVar[str] = "odd"
        urgent: ClassVar[bool] = True

        def __call__(self, report: FeatureReport) -> Any:
            grave = report.batches == 7 if within else report.epoch == 1
            yield self.alert(report, "net.0", 2.0 if grave else 1.0, 0.0, "critical" if grave else "warning", "it is odd.")

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.nan  # so that there is something to check within the epoch

    reported: list[Alert] = []
    monitor = FeatureStatsMonitor(
        every_n_steps=1, check_every_n_steps=1 if within else None, rules=[Odd(), "-nonfinite"], report_dir=tmp_path
    )
    monitor.subscribe(reported.append)
    net = nn.Sequential(nn.Linear(8, 8), Broken() if within else nn.ReLU(), nn.Linear(8, 3))
    trainer([monitor], max_epochs=1 if within else 2).fit(Classifier(net), loader())
    assert [alert.severity for alert in reported if alert.kind == "odd"] == ["warning", "critical"]
    (shown,) = (alert for alert in monitor.report.alerts if alert.kind == "odd")
    (held,) = (alert for alert in monitor.member.alerting.book.open if alert.kind == "odd")
    assert shown.severity == held.severity == "critical"
    assert (held.epoch, held.value) == (0, 1.0)  # as it was first
    assert "[critical] odd at net.0" in capsys.readouterr().out
    (problem,) = (problem for problem in judge(read_run(tmp_path)).problems if problem.kind == "odd")
    assert problem.severity == "critical"
