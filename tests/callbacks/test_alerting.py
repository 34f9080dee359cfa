"""What on_alert does, and the summary."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Alert, FeatureStatsMonitor, GradientFlowMonitor, monitors
from lightning_hooks.alerts import AlertError
from tests.models import Classifier, loader, mlp, trainer


def dying() -> Classifier:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(net[0].bias, -100.0)
    return Classifier(net, lr=0.0)


def test_log_goes_to_lightnings_logger_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="lightning.pytorch"):
        trainer([FeatureStatsMonitor(summary=False)], max_epochs=3).fit(dying(), loader())
    told = [r.message for r in caplog.records if "dead at net.1" in r.message]
    assert len(told) == 1
    assert "Try a lower learning rate" in told[0]


def test_warn_warns_once() -> None:
    with pytest.warns(UserWarning, match=r"\[critical\] dead at net.1: 100% of its units") as told:
        trainer([FeatureStatsMonitor(on_alert="warn", summary=False)], max_epochs=3).fit(dying(), loader())
    assert len([w for w in told if "dead at net.1" in str(w.message)]) == 1


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
    assert not monitor.hooks.alive


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


def test_what_was_told_survives_resume(tmp_path: Any) -> None:
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


def test_summary_names_the_worst_the_silent_and_the_coverage(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(monitors(every_n_steps=2), gradient_clip_val=0.5).fit(dying(), loader())
    printed = capsys.readouterr().out
    assert "Feature statistics, epoch 0: 3 of 3 modules heard, in 4 of 7 batches." in printed
    assert "[critical] dead at net.1: 100% of its units" in printed
    assert "Gradient flow, epoch 0: 3 of 3 modules and 4 parameters heard" in printed
    assert "0-SGD" in printed


def test_summary_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    trainer(monitors(summary=False)).fit(Classifier(mlp()), loader())
    assert "Feature statistics" not in capsys.readouterr().out


def test_nan_weights_name_every_ill_layer_in_order() -> None:
    class Nan(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 0.0 * 0.0

    net = nn.Sequential(nn.Linear(8, 8), Nan(), nn.Linear(8, 3))
    features, flow = FeatureStatsMonitor(summary=False), GradientFlowMonitor(summary=False)
    trainer([features, flow], limit_train_batches=1).fit(Classifier(net), loader())
    assert [alert.site for alert in features.report.alerts if alert.kind == "nonfinite"] == ["net.1", "net.2"]
