"""The health report in a notebook: before, during and after a fit, with files and without."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from lightning_hooks import FeatureStatsMonitor, TrainingMonitor
from lightning_hooks.run_report.page import MOST_NOTEBOOK_BYTES
from tests.support.models import Classifier, loader, mlp, trainer


def fit(monitor: Any, *others: Callback, net: nn.Module | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    net = mlp() if net is None else net
    nn.init.constant_(next(iter(net.children())).bias, -20.0)  # its units are dead
    run = trainer([monitor, *others], **{"max_epochs": 2, "gradient_clip_val": 0.5, **options})
    run.fit(Classifier(net), loader())
    return run


def names(record: Any) -> dict[int, list[str]]:
    return {epoch: [alert.name for alert in alerts] for epoch, alerts in record.alerts.items()}


def test_before_the_first_window_it_says_what_to_do() -> None:
    monitor = TrainingMonitor(summary=False)
    assert "No report: no window was completed." in monitor._repr_html_()
    assert "when the first window of trainer.fit() ends" in monitor._repr_html_()
    assert (monitor.report.path, monitor.report.run.epochs) == (None, [])
    for call in (monitor.plot, monitor.to_frame):
        with pytest.raises(ValueError, match=r"expected a window of trainer\.fit\(\) that has ended, got none\. Call this after"):
            call()
    with pytest.raises(ValueError, match="monitor must be one of features, attention, routers, gradients, clipping; got 'feature'"):
        monitor.to_frame("feature")


def test_without_files_the_report_is_that_of_the_files(tmp_path: Path) -> None:
    reports = []
    for logger in (CSVLogger(tmp_path, name="csv", version=0), False):
        monitor = TrainingMonitor(every_n_steps=1, summary=False)
        fit(monitor, logger=logger)
        reports.append(monitor.report)
    of_files, in_memory = reports
    assert of_files.path == tmp_path / "csv/version_0/lightning_hooks/report.html"
    assert in_memory.path is None
    assert in_memory.verdict == of_files.verdict
    assert repr(in_memory) == "RunReport('Dead units at net.1, since epoch 0.', path=None)"
    assert {at: event["loss"] for at, event in of_files.run.timing.items()} == pytest.approx(
        {at: event["loss"] for at, event in in_memory.run.timing.items()}, rel=1e-4
    )
    for of_file, of_memory in zip(of_files.run.monitors, in_memory.run.monitors, strict=True):
        assert (of_file.prefix, of_file.modules) == (of_memory.prefix, of_memory.modules)
        assert names(of_file) == names(of_memory)
        assert repr(of_file.columns) == repr(of_memory.columns)


def test_what_users_wrote_is_escaped_and_the_size_is_bounded() -> None:
    hostile = "<script>alert(1)</script>" * 40
    net = nn.Sequential()
    for name, module in ((f"{hostile}0", nn.Linear(8, 8)), (f"{hostile}1", nn.ReLU()), ("out", nn.Linear(8, 3))):
        net.add_module(name, module)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    fit(monitor, net=net, logger=False)
    head = monitor._repr_html_()
    assert "&lt;script&gt;" in head
    assert "<script" not in head
    assert len(head) < 20_000
    whole = TrainingMonitor(every_n_steps=1, summary=False)
    fit(whole, net=net, logger=False)
    shown = whole.report._repr_html_()
    assert shown.count("<") == 2  # the frame alone
    assert len(shown) < 2 * MOST_NOTEBOOK_BYTES


@pytest.mark.parametrize(("missing", "call"), [("matplotlib", "plot"), ("pandas", "to_frame")])
def test_without_an_optional_package_the_error_names_it(missing: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False)
    fit(monitor, logger=False)
    found = builtins.__import__

    def lacks(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ImportError(name)
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", lacks)
    with pytest.raises(ImportError, match=f"needs {missing}: pip install {missing}"):
        getattr(monitor, call)()
