"""Notifications of a fit, sent to a local server; and the page in a notebook."""

from __future__ import annotations

import json
import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import AlertError
from lightning_hooks.run_report.recorded import Run
from lightning_hooks.session.sinks import Sinks
from lightning_hooks.sinks import Sink
from lightning_hooks.sinks.notebook import LivePage
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import same_state
from tests.support.trainings import dying
from tests.support.web_server import Sent, answers, web_server


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sent]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with web_server() as found:
        monkeypatch.setenv("HOOK", found.address)
        yield found


def monitor(**arguments: Any) -> TrainingMonitor:
    return TrainingMonitor(**{"notify": "env:HOOK", "summary": False, "every_n_steps": 1, **arguments})


def messages(sent: Sent) -> list[dict[str, Any]]:
    return [json.loads(body) for _, _, body in sent.requests]


def kinds(sent: Sent) -> list[str]:
    """The messages' events, or the alert's kind; the end first where it came before what waited."""
    return sorted(found["kind"] if found["event"] == "alert" else found["event"] for found in messages(sent))


class Raising(Classifier):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx == 3:
            raise RuntimeError("the disk is full")
        return super().training_step(batch, batch_idx)


def test_an_alert_and_the_end_are_sent(sent: Sent, tmp_path: Path) -> None:
    trainer([monitor()], max_epochs=3, logger=CSVLogger(tmp_path, name="logs", version=0)).fit(dying(), loader())
    assert kinds(sent) == ["dead", "finished"]
    (alert,) = (found for found in messages(sent) if found["event"] == "alert")
    assert (alert["site"], alert["severity"], alert["run"]) == ("net.1", "critical", "Classifier, logs/version_0")
    assert alert["headline"] == "Dead units at net.1"
    assert alert["cause"].startswith("net.0.bias is -100 in all 16 units, since the start. 100% of its units")
    assert alert["remedy"]
    (end,) = (found for found in messages(sent) if found["event"] == "finished")
    assert end["headline"].startswith("Training finished. Dead units at net.1, since epoch 0")
    assert (end["epoch"], end["step"]) == (3, 21)
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert "SECRET" not in written


def test_a_stop_a_crash_and_a_raise_are_named(sent: Sent) -> None:
    trainer([monitor(on_alert="stop")], max_epochs=5).fit(dying(), loader())
    assert "stopped" in kinds(sent)
    sent.requests.clear()
    with pytest.raises(RuntimeError, match="the disk is full"):
        trainer([monitor()]).fit(Raising(mlp()), loader())
    assert kinds(sent) == ["crashed"]
    assert "RuntimeError: the disk is full" in messages(sent)[0]["headline"]
    sent.requests.clear()
    with pytest.raises(AlertError):
        trainer([monitor(on_alert="raise")]).fit(dying(), loader())
    assert kinds(sent) == ["dead", "stopped"]


def test_a_server_that_fails_is_logged_once_and_training_is_unaltered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    models = []
    with web_server(answers("500 No")) as broken:
        for arguments in ({"notify": broken.address}, {"notify": None}):
            torch.manual_seed(0)
            models.append(dying())
            trainer([monitor(**arguments)], max_epochs=2).fit(models[-1], loader())
    assert same_state(*models)
    records = [record for record in caplog.records if "notification" in record.message]
    assert [record.levelno for record in records] == [logging.WARNING]
    assert "SECRET" not in caplog.text


@pytest.mark.parametrize("event", ["epoch_start", "reports", "alerts", "window_end", "end"])
def test_a_sink_that_raises_is_logged_and_called_no_more(event: str, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    class Bad(LivePage):
        pass

    class Good(Sink):
        pass

    def fails(*_: Any, **__: Any) -> None:
        calls.append("bad")
        raise ValueError("SECRET")

    setattr(Bad, event, fails)
    setattr(Good, event, lambda *_, **__: calls.append("good"))
    sinks = Sinks(Bad(lambda: Run(Path(), "a")), Good())
    given: dict[str, Any] = {"reports": ([],), "alerts": ([None],), "window_end": ([],)}
    for _ in range(2):
        if event == "end":
            sinks.end([], {})
        else:
            sinks.call(event, *given.get(event, ()))
    assert calls == ["bad", "good", "good"]
    assert caplog.text.count("Bad, which follows the run, raised ValueError, and is not called any more. Training goes on.") == 1
    assert "SECRET" not in caplog.text


def test_in_a_notebook_the_page_is_shown_and_refreshed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, page: str) -> None:
            shown.append(page)

    def display(page: str, display_id: bool) -> Handle:
        assert display_id
        shown.append(page)
        return Handle()

    ipython: Any = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.HTML, ipython.display.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    monkeypatch.setattr("lightning_hooks.sinks.notebook.MOST_SHARE", 1e9)
    trainer([TrainingMonitor(live=True, summary=False)], max_epochs=3, logger=CSVLogger(tmp_path)).fit(dying(), loader())
    assert len(shown) == 4
    assert all(page.startswith('<iframe title="Health"') for page in shown)
    assert "Dead units at net.1" in shown[-1]
    assert max(map(len, shown)) < 600_000
