"""What on_alert does, and the summary."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
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
    assert what == f"[critical] dead at net.1 (epoch 0, step 7): {alert.message}"
    assert why == f"  why: {alert.diagnosis.removeprefix('Common causes: ')}"
    assert advice == "  try: fill net.0.bias with 0: nn.init.zeros_(self.net[0].bias)."
    caplog.clear()
    with caplog.at_level(logging.ERROR, logger="lightning_hooks"):
        trainer([FeatureStatsMonitor(summary=False)]).fit(dying(), loader())
    assert not caplog.records


def test_warn_warns_once() -> None:
    with pytest.warns(UserWarning, match=r"\[critical\] dead at net.1 \(epoch 0, step 7\): 100% of its units") as reported:
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


def test_the_text_is_shown_where_a_function_fails_and_the_error_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(alert: Alert) -> None:
        raise KeyError("oops")

    def wrong(report: FeatureReport) -> Any:
        for kind in ("info", "warning", "critical"):
            yield Alert(kind, "net.0", 1.0, 0.0, report.epoch, report.step, kind, "it is odd.")

    with pytest.warns(UserWarning, match=r"broken at .* raised KeyError: 'oops'; training goes on, and this.*once") as reported:
        trainer(monitors(on_alert=broken, rules=[wrong], summary=False)).fit(dying(), loader())
    assert len([w for w in reported if "oops" in str(w.message)]) == 1
    assert [r.message.partition(":")[0] for r in caplog.records if r.name == "lightning_hooks"] == [
        "[critical] dead at net.1 (epoch 0, step 7)",
        "[critical] critical at net.0 (epoch 0, step 7)",
        "[warning] warning at net.0 (epoch 0, step 7)",
    ]


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


def test_what_a_run_was_stopped_by_is_said_wherever_it_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = TrainingMonitor(on_alert="stop", every_n_steps=1)
    trainer([monitor], max_epochs=5, logger=CSVLogger(tmp_path, name="", version="run")).fit(dying(), loader())
    headline = "Dead units at net.1, since epoch 0. Stopped by dead at net.1 at step 7."
    assert f"Monitors: {headline} More: lightning-hooks report {tmp_path / 'run'}\n" in capsys.readouterr().out
    assert monitor.verdict == headline
    assert headline in (tmp_path / "run/lightning_hooks/report.md").read_text()


@pytest.mark.parametrize("logger", [True, False])
def test_the_end_does_not_contradict_an_alert_that_was_logged(
    logger: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The alert is gone in the last epochs, and the loss has not fallen."""
    monitor = TrainingMonitor(every_n_steps=1, rules=["-lr_zero", "-not_updated"])
    logged_to = CSVLogger(tmp_path, name="", version="run") if logger else False
    trainer([monitor], max_epochs=4, logger=logged_to).fit(Reviving(dying().net, lr=0.0), loader(shuffle=False))
    printed = capsys.readouterr().out
    headline = monitor.verdict
    more = f" More: lightning-hooks report {tmp_path / 'run'}" if logger else ""
    assert f"Monitors: {headline}{more}\n" in printed
    assert "Open alerts: none\n" in printed
    assert headline.startswith("Dead units at net.1, in epoch 0, not seen since; the loss ")
    if logger:
        assert headline in (tmp_path / "run/lightning_hooks/report.md").read_text()
    logged = [r.message.partition(":")[0] for r in caplog.records if r.name == "lightning_hooks"]
    assert logged == ["[critical] dead at net.1 (epoch 0, step 7)", "[ended] dead at net.1 (epoch 2, step 21)"]
    assert "[ended] dead at net.1 (epoch 2, step 21): not in the last 2 epochs." in caplog.messages


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


def test_what_was_reported_survives_resume(tmp_path: Any) -> None:
    seen: list[Alert] = []
    run = trainer([FeatureStatsMonitor(summary=False)], max_epochs=1)
    run.fit(dying(), loader())
    run.save_checkpoint(tmp_path / "one.ckpt")
    again = FeatureStatsMonitor(on_alert=seen.append, summary=False)
    trainer([again], max_epochs=2).fit(dying(), loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert [alert.kind for alert in again.report.alerts] == ["dead"]
    assert seen == []


def test_healthy_training_raises_no_alert() -> None:
    torch.manual_seed(0)
    ours = monitors(every_n_steps=1, summary=False, on_alert="raise")
    trainer(ours, max_epochs=3, gradient_clip_val=1.0).fit(Classifier(mlp()), loader())
    assert [callback.report.alerts for callback in ours[:3]] == [(), (), ()]


def test_the_full_summary_names_the_worst_the_silent_and_the_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(monitors(every_n_steps=2, summary="full"), gradient_clip_val=0.5).fit(dying(), loader())
    printed = capsys.readouterr().out
    assert "Feature statistics, epoch 0: 3 of 3 modules recorded, in 4 of 7 batches." in printed
    assert printed.splitlines()[-2:] == [
        "Monitors: Dead units at net.1, since epoch 0.",
        "Open alerts: [critical] dead at net.1 (epoch 0, step 7)",
    ]
    assert "Gradient flow, epoch 0: 3 of 3 modules and 4 parameters recorded" in printed
    assert "0-SGD" in printed


def test_summary_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(monitors(summary=False)).fit(Classifier(mlp()), loader())
    assert capsys.readouterr().out == ""


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


def test_nothing_is_written_without_a_logger_or_an_alert(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trainer(monitors(summary=False), default_root_dir=tmp_path).fit(dying(), loader())
    trainer(monitors(summary=False), logger=CSVLogger(tmp_path)).fit(Classifier(mlp()), loader())
    assert not list(tmp_path.rglob("alerts.jsonl"))


@pytest.mark.filterwarnings("ignore:The health report in")
def test_a_file_that_cannot_be_written_is_reported_and_training_goes_on(tmp_path: Any) -> None:
    (tmp_path / "tb/version_0").mkdir(parents=True)
    (tmp_path / "tb/version_0/lightning_hooks").write_text("in the way")
    run = trainer([FeatureStatsMonitor(summary=False)], logger=TensorBoardLogger(tmp_path, name="tb", version=0))
    with pytest.warns(UserWarning, match=r"The alerts could not be written to .*alerts\.jsonl.*; training goes on"):
        run.fit(dying(), loader())
    assert run.state.finished


def test_what_one_monitor_finds_explains_what_another_does(caplog: pytest.LogCaptureFixture) -> None:
    ours = monitors(every_n_steps=1, summary=False)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer(ours).fit(dying(), loader())
    reported = [r.message for r in caplog.records if r.message.startswith("[")]
    assert len(reported) == 1
    consequences = "representation_collapse at cross_entropy; zero at 3 sites (net.2.weight, net.0.weight, net.0.bias)"
    assert reported[0].splitlines()[1].endswith(f" Consequences: {consequences}.")
    assert [(a.name, a.cause, a.severity) for a in ours[1].report.alerts if a.kind != "lr_zero"] == [
        (f"zero at {name}", "dead at net.1", "info") for name in ("net.2.weight", "net.0.weight", "net.0.bias")
    ]


def test_subscribers_are_called_in_order_next_to_what_on_alert_says() -> None:
    seen: list[str] = []
    monitor = FeatureStatsMonitor(on_alert="stop", summary=False)
    gone, stays = (lambda alert: seen.append("gone")), (lambda alert: seen.append(f"stays {alert.name}"))
    for observer in (gone, lambda alert: seen.append("first"), stays):
        monitor.subscribe(observer)
    monitor.unsubscribe(gone)
    run = trainer([monitor], max_epochs=3)
    run.fit(dying(), loader())
    assert seen == ["first", "stays dead at net.1"]
    assert run.current_epoch == 1


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


def test_a_rule_of_the_users_that_raises_is_reported_once() -> None:
    def broken(report: FeatureReport) -> Any:
        raise KeyError("oops")

    with pytest.warns(UserWarning, match="The rule broken raised KeyError: 'oops'; its alerts are missing") as reported:
        trainer([FeatureStatsMonitor(rules=[broken], summary=False)], max_epochs=3).fit(Classifier(mlp()), loader())
    assert len([w for w in reported if "oops" in str(w.message)]) == 1


def test_history_is_short_and_survives_resume(tmp_path: Any) -> None:
    seen: list[list[int]] = []

    def watching(report: FeatureReport, history: Any) -> Any:
        seen.append([earlier.epoch for earlier in history])
        assert all(earlier.sites["net.0"].count and earlier.order == report.order for earlier in history)
        return ()

    def fit(epochs: int, path: Any = None) -> Any:
        run = trainer([FeatureStatsMonitor(rules=[watching], summary=False)], max_epochs=epochs)
        run.fit(Classifier(mlp()), loader(), ckpt_path=path, weights_only=True if path else None)
        return run

    fit(3).save_checkpoint(tmp_path / "three.ckpt")
    fit(6, tmp_path / "three.ckpt")
    assert seen == [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 2, 3, 4]]  # the first one stays


def test_the_summary_reports_what_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    trainer([FeatureStatsMonitor(every_n_steps=1, summary="full")], max_epochs=4).fit(Reviving(dying().net, lr=0.0), loader())
    assert "  Over: dead at net.1 (epoch 0)" in capsys.readouterr().out


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
