"""What on_alert does, and the summary."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

from lightning_hooks import Alert, FeatureStatsMonitor, GradientFlowMonitor, TrainingMonitor, monitors
from lightning_hooks.alerts import AlertError, Dead, FeatureReport
from tests.support.models import Classifier, is_attached, loader, mlp, trainer
from tests.support.trainings import dying


def test_log_goes_to_our_logger_once_in_three_lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = FeatureStatsMonitor(summary=False)
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "disabled", True)  # silences Lightning, and not the alerts
    trainer([monitor], max_epochs=3).fit(dying(), loader())
    (reported,) = (r for r in caplog.records if "dead at net.1" in r.message)
    assert (reported.name, reported.levelname) == ("lightning_hooks", "WARNING")
    what, why, advice = reported.message.splitlines()
    (alert,) = (alert for alert in monitor.history[0].alerts if alert.kind == "dead")
    assert what == f"[critical] dead at net.1 (epoch 0, step 7, 96% likely): {alert.diagnosis}"
    assert why == f"  seen: {alert.message}"
    assert advice == "  try: fill net.0.bias with 0: nn.init.zeros_(self.net[0].bias)."
    caplog.clear()
    with caplog.at_level(logging.ERROR, logger="lightning_hooks"):
        trainer([FeatureStatsMonitor(summary=False)]).fit(dying(), loader())
    assert not caplog.records


def test_warn_warns_once() -> None:
    with pytest.warns(
        UserWarning, match=r"\[critical\] dead at net.1 \(epoch 0, step 7, 96% likely\): net\.0\.bias is -100"
    ) as reported:
        trainer([FeatureStatsMonitor(on_alert="warn", summary=False)], max_epochs=3).fit(dying(), loader())
    assert len([w for w in reported if "dead at net.1" in str(w.message)]) == 1


def test_stop_ends_the_fit_after_the_epoch() -> None:
    run = trainer([FeatureStatsMonitor(on_alert="stop", summary=False)], max_epochs=5)
    run.fit(dying(), loader())
    assert run.current_epoch == 1
    assert run.state.finished


def test_raise_carries_the_alerts_and_leaves_no_hook() -> None:
    monitor = FeatureStatsMonitor(on_alert="raise", summary=False)
    with pytest.raises(AlertError, match=r"dead at net\.1") as raised:
        trainer([monitor]).fit(dying(), loader())
    assert ("dead", "net.1") in {(alert.kind, alert.site) for alert in raised.value.alerts}
    assert monitor.report.alerts
    assert not is_attached(monitor)


def test_a_function_is_called_with_each_new_alert_and_may_fail() -> None:
    seen: list[Alert] = []

    def subscriber(alert: Alert) -> None:
        seen.append(alert)
        raise KeyError("oops")

    with pytest.warns(UserWarning, match=r"raised KeyError: 'oops'; training goes on"):
        trainer([FeatureStatsMonitor(on_alert=subscriber, summary=False)], max_epochs=3).fit(dying(), loader())
    assert ("dead", "net.1") in [(alert.kind, alert.site) for alert in seen]
    assert len({(alert.kind, alert.site) for alert in seen}) == len(seen)
    assert {alert.epoch for alert in seen} == {0}


def test_on_alert_takes_a_list(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []
    monitor = FeatureStatsMonitor(on_alert=["warn", "stop", lambda alert: seen.append(alert.name)], summary=False)
    run = trainer([monitor], max_epochs=5)
    with pytest.warns(UserWarning, match=r"\[critical\] dead at net.1"):
        run.fit(dying(), loader())
    assert seen == ["dead at net.1"]
    assert run.current_epoch == 1
    assert [r.message for r in caplog.records if r.name == "lightning_hooks"] == [
        "Training stops because of dead at net.1 (epoch 0, step 7): on_alert='stop'."
    ]
    caplog.clear()
    with pytest.warns(UserWarning, match=r"\[critical\] dead at net.1"):
        trainer([FeatureStatsMonitor(on_alert=["log", "warn"], summary=False)]).fit(dying(), loader())
    assert len([r for r in caplog.records if r.message.startswith("[critical] dead at net.1")]) == 1


@pytest.mark.parametrize("wrong", [[], ["log", "shout"], [["log"]], [None], None, ["log", 3]])
def test_what_on_alert_does_not_take(wrong: Any) -> None:
    expected = "on_alert must be one of log, warn, stop, raise, a function of an Alert, or a list of these; got "
    with pytest.raises(ValueError, match=re.escape(expected + repr(wrong))):
        FeatureStatsMonitor(on_alert=wrong)


def test_a_crash_is_the_verdict_with_or_without_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Crashes(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.global_step == 10:
                raise IndexError("index out of range in self")
            return super().training_step(batch, batch_idx)

    verdicts = []
    for logger in (False, CSVLogger(tmp_path, name="", version="run")):
        monitor = TrainingMonitor(every_n_steps=1)
        with pytest.raises(IndexError):
            trainer([monitor], max_epochs=3, logger=logger).fit(Crashes(mlp()), loader())
        verdicts.append(monitor.verdict)
        more = f" More: lightning-hooks report {tmp_path / 'run'}" if logger else ""
        assert f"Monitors: {monitor.verdict}{more}\n" in capsys.readouterr().out
        assert monitor.status == "failed"
    crash = "Training ended with IndexError: index out of range in self (epoch 1, step 10). No alert was raised before it."
    assert verdicts == [crash, crash]


def test_the_full_summary_has_each_report_and_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(monitors(every_n_steps=2, summary="full"), gradient_clip_val=0.5).fit(dying(), loader())
    printed = capsys.readouterr().out
    assert "FeatureReport: epoch 0, step 7\n  3 sites measured; 4 of 7 batches sampled\n" in printed
    assert [line.split()[0] for line in printed.splitlines() if line.startswith("  net.")][:3] == ["net.1", "net.0", "net.2"]
    assert printed.splitlines()[-2:] == [
        "Monitors: Dead units at net.1, since epoch 0.",
        "Open alerts: [critical] dead at net.1 (epoch 0, step 7)",
    ]
    assert "  3 modules, 4 parameters, 1 optimizer measured" in printed
    assert "0-SGD" in printed


def test_the_summary_is_three_lines_once_for_all_monitors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer(monitors(), logger=CSVLogger(tmp_path, name="", version="run")).fit(Classifier(mlp()), loader())
    assert capsys.readouterr().out.splitlines() == [
        "",
        f"Monitors: 1 epoch, no rule broken. More: lightning-hooks report {tmp_path / 'run'}",
        "Open alerts: none",
        f"Health report: {tmp_path / 'run' / 'lightning_hooks' / 'report.html'}",
    ]


@pytest.mark.parametrize("wrong", [None, 1, "short"])
def test_a_summary_of_another_kind_is_rejected(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"summary must be True \(three lines at the end\), 'full' \(with tables\) or False; got"):
        monitors(summary=wrong)


def test_nan_weights_name_every_affected_layer_in_order() -> None:
    class Nan(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0.0 * 0.0

    net = nn.Sequential(nn.Linear(8, 8), Nan(), nn.Linear(8, 3))
    features, flow = FeatureStatsMonitor(summary=False), GradientFlowMonitor(summary=False)
    trainer([features, flow], limit_train_batches=1).fit(Classifier(net), loader())
    assert [alert.site for alert in features.report.alerts if alert.kind == "nonfinite"] == ["net.1", "net.2"]


class Reviving(Classifier):
    """Its rectifier is dead in the first epoch, and well from then on."""

    def on_train_epoch_start(self) -> None:
        nn.init.constant_(self.net[0].bias, -100.0 if self.current_epoch == 0 else 0.0)


def test_alerts_are_written_to_a_file_and_to_the_loggers_text(tmp_path: Any) -> None:
    logger = TensorBoardLogger(tmp_path, name="tb", version=0)
    model = Reviving(dying().net, lr=0.0)
    trainer(monitors(every_n_steps=1, summary=False), logger=logger, max_epochs=4).fit(model, loader())
    lines = (tmp_path / "tb/version_0/lightning_hooks/alerts.jsonl").read_text().splitlines()
    raised, cleared = [line for line in map(json.loads, lines) if line["kind"] != "lr_zero"]
    assert (raised["event"], raised["monitor"], raised["kind"], raised["site"]) == ("raised", "features", "dead", "net.1")
    assert (raised["epoch"], raised["severity"], raised["value"], raised["since_step"]) == (0, "critical", 1.0, 7)
    assert raised["consequences"] == [
        "representation_collapse at cross_entropy",
        *(f"zero at net.{name}" for name in ("2.weight", "0.weight", "0.bias")),
    ]
    assert cleared.keys() == raised.keys()
    assert (cleared["event"], cleared["monitor"], cleared["kind"], cleared["site"]) == ("cleared", "features", "dead", "net.1")
    assert (cleared["first_epoch"], cleared["last_epoch"], cleared["epoch"], cleared["step"]) == (0, 0, 2, 21)
    assert (cleared["version"], cleared["severity"]) == (2, "critical")
    events = EventAccumulator(str(tmp_path / "tb/version_0")).Reload()
    (tag,) = (tag for tag in events.Tags()["tensors"] if "alerts" in tag)
    (text,) = events.Tensors(tag)
    assert text.step == 6
    assert "| critical | dead | net.1 |" in text.tensor_proto.string_val[0].decode()


def test_rules_are_changed_muted_and_added() -> None:
    def wide(report: FeatureReport) -> Any:
        yield Alert("wide", "net.0", 1.0, 0.0, report.epoch, report.step, "warning", "it is wide.")

    ours = monitors(every_n_steps=1, summary=False, rules=["-dead at net.?", wide, {"kind": "zero", "severity": "critical"}])
    run = trainer(ours)
    run.fit(dying(), loader())
    assert [(a.kind, a.severity) for m in ours for a in m.report.alerts if not a.cause] == [
        ("wide", "warning"),
        ("zero", "critical"),
        ("lr_zero", "info"),
    ]
    assert run.callback_metrics["features/alerts/dead"] == 0
    assert run.callback_metrics["features/alerts/wide"] == 1


def test_a_rule_for_no_place_of_the_model_is_rejected_and_leaves_no_hook() -> None:
    monitor = FeatureStatsMonitor(rules=[Dead(sites="net.7")], summary=False)
    with pytest.raises(ValueError, match=r"the rule Dead\(sites='net.7'\) matches none .* Closest names: 'net\.\d'"):
        trainer([monitor]).fit(dying(), loader())
    assert not is_attached(monitor)


@pytest.mark.parametrize(("terminal", "no_color", "coloured"), [(True, None, True), (True, "1", False), (False, None, False)])
def test_the_console_is_coloured_where_it_is_a_terminal(
    terminal: bool, no_color: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal, raising=False)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer([FeatureStatsMonitor(summary=False)]).fit(dying(), loader())
    (reported,) = (r.message for r in caplog.records if "dead at net.1" in r.message)
    assert reported.startswith("\033[31m[critical]" if coloured else "[critical]")
    assert reported.splitlines()[0].endswith("\033[0m") is coloured
    assert reported.count("\033") == 2 * coloured  # why and what to try are plain
