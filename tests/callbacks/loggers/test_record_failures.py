"""What goes wrong while a run's record ends or is opened harms neither the others nor training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import monitors
from lightning_hooks.hosts import lightning_folder
from lightning_hooks.run_report import read_run
from lightning_hooks.session.tracker_sink import TrackerSink
from lightning_hooks.trackers import Trackers
from tests.support.models import Classifier, ElsewhereLogger, hook_counts, is_attached, loader, mlp, trainer

FAULT = "The end of the run's record raised OSError: no room"


class Boom(Exception):
    pass


class Fails(Callback):
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == 1:
            raise Boom


def no_room(*_: Any, **__: Any) -> Any:
    raise OSError("no room")


def texts(warned: Any, part: str) -> list[str]:
    return [str(warning.message) for warning in warned if part in str(warning.message)]


@pytest.mark.parametrize("what", ["leave", "pictures"])
@pytest.mark.parametrize("how", ["exception", "finished"])
def test_a_fault_at_the_end_of_one_record_leaves_the_others_clean(
    how: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = monitors(every_n_steps=1, summary=False, check_every_n_steps=1)
    model = Classifier(mlp())
    before = hook_counts(model)
    run = trainer([*ours, *([Fails()] if how == "exception" else [])], max_epochs=2, logger=CSVLogger(tmp_path, name="", version=0))
    if what == "leave":
        monkeypatch.setattr("lightning_hooks.session.run_record.RunRecord.end", no_room)
    else:  # a part of it
        write = TrackerSink.write_figures

        def only_last(self: TrackerSink, last: bool = False) -> None:
            return no_room() if last else write(self)

        monkeypatch.setattr(TrackerSink, "write_figures", only_last)
    ends = pytest.raises(Boom) if how == "exception" else nullcontext()
    with pytest.warns(UserWarning, match=FAULT) as warned, ends:
        run.fit(model, loader())
    reported = texts(warned, FAULT)
    assert len(reported) == 1
    assert hook_counts(model) == before
    assert not any(is_attached(callback) for callback in ours)
    for optimizer in run.optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    if what == "pictures":
        assert read_run(tmp_path).end["how"] == how  # the run's report is there all the same


class Rates(torch.optim.Optimizer):
    """A group of it has a learning rate for each of its parameters."""

    def __init__(self, parameters: Any, lr: float) -> None:
        first, *rest = parameters
        super().__init__([{"params": [first], "lr": lr}, {"params": rest, "lr": [lr, lr / 2]}], {})

    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= 0.01 * parameter.grad
        return loss


def test_a_learning_rate_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    run = trainer(monitors(summary=False), max_epochs=2, logger=CSVLogger(tmp_path, name="", version=0))
    run.fit(Classifier(mlp(), lr=0.01, optimizer=Rates), loader())
    assert [event["lr"] for event in read_run(tmp_path).timing.values()] == [{"0-Rates/pg1": 0.01}] * 2


@pytest.mark.parametrize("part", ["report_line", "learning_rates"])
def test_a_report_that_cannot_be_written_is_one_warning(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"lightning_hooks.session.run_record.{part}", no_room)
    run = trainer(monitors(summary=False), max_epochs=3, logger=CSVLogger(tmp_path, name="", version=0))
    with pytest.warns(UserWarning, match="The health report in .* cannot be written: OSError: no room") as warned:
        run.fit(Classifier(mlp()), loader())
    assert len(texts(warned, "health report")) == 1
    assert run.current_epoch == 3


@pytest.mark.parametrize("broken", ["mkdtemp", "version", "keep_files"])
def test_a_folder_that_cannot_be_made_is_one_warning(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a logger that keeps files with its run, and has no directory."""

    class Logger(ElsewhereLogger):
        @property
        def version(self) -> Any:
            return no_room() if broken == "version" else 0

    keeps = property(no_room if broken == "keep_files" else lambda self: True)
    monkeypatch.setattr(Trackers, "keep_files", keeps)
    if broken == "mkdtemp":
        monkeypatch.setattr(lightning_folder.tempfile, "mkdtemp", no_room)
    run = trainer(monitors(summary=False), logger=Logger(None))
    with pytest.warns(UserWarning, match=r"no folder for the health report and the alerts \(OSError: no room\)") as warned:
        run.fit(Classifier(mlp()), loader())
    assert len(texts(warned, "no room")) == 1
    assert run.state.finished
