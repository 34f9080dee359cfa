"""What goes wrong while a run's record ends or is opened harms neither the others nor training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import monitors
from lightning_hooks.run_report import read_run
from lightning_hooks.session.tracker_sink import TrackerSink
from tests.support.models import Classifier, hook_counts, is_attached, loader, mlp, trainer

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
