"""What a run leaves: its reports line by line, and at the end one health report of all monitors."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_hooks import (
    ActivationRangeObserver,
    FeatureStatsMonitor,
    GradientFlowMonitor,
    monitors,
)
from lightning_hooks.run_report import judge, read_run
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.pages import data_of, texts
from tests.support.runs import read_lines

FILES = ["health.json", "report.html", "report.md", "reports.jsonl"]


def files(folder: Path) -> list[str]:
    """The run's own files, without what a CSVLogger is given: that has folders of its own next to them."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("lightning_hooks/*") if path.is_file())


def quiet(**kwargs: Any) -> list[Any]:
    return monitors(every_n_steps=1, summary=False, **kwargs)


def fit(folder: Path, callbacks: Any = None, epochs: int = 2, model: Any = None, **kwargs: Any) -> Any:
    kwargs.setdefault("logger", CSVLogger(folder, name="logs", version=kwargs.pop("version", 0)))
    run = trainer(quiet() if callbacks is None else callbacks, max_epochs=epochs, **kwargs)
    run.fit(model or Classifier(mlp()), loader())
    return run


def ours(folder: Path) -> Path:
    return folder / "logs" / "version_0" / "lightning_hooks"


def test_the_trio_writes_one_report(tmp_path: Path) -> None:
    fit(tmp_path)
    assert sorted(path.name for path in ours(tmp_path).iterdir()) == ["Verdict", *FILES]
    events = list(read_lines(ours(tmp_path) / "reports.jsonl"))
    assert [event["event"] for event in events] == ["fit", *["report", "report", "report", "epoch"] * 2, "end"]
    assert [event["monitor"] for event in events if event["event"] == "report"] == [
        "features",
        "gradient_flow",
        "gradient_clip",
    ] * 2
    head = events[0]
    assert (head["model"], head["epoch"], head["max_epochs"], head["optimizers"]) == ("Classifier", 0, 2, "SGD")
    assert head["parameters"] == sum(parameter.numel() for parameter in mlp().parameters())
    assert head["torch"] == str(torch.__version__)
    assert (events[-1]["how"], events[-1]["epoch"], events[-1]["step"]) == ("finished", 2, 14)
    assert "2 epochs, no rule broken; the loss " in (ours(tmp_path) / "report.html").read_text()
    assert "2 epochs, no rule broken; the loss " in (ours(tmp_path) / "report.md").read_text()


def test_lines_hold_what_the_monitors_reported(tmp_path: Path) -> None:
    trio = quiet()
    fit(tmp_path, trio)
    run = read_run(ours(tmp_path))
    for monitor, written in zip(trio, run.monitors, strict=True):
        assert (written.prefix, written.epochs, list(written.columns)) == (monitor.collector.prefix, [0, 1], [0, 1])
        reported = monitor.history[-1].to_dict()
        if "loss" in reported:
            reported["loss"]["recent"] = []  # a checkpoint has the single values
            reported["learning"]["parameters"] = {}  # the file has the shares of modules
        assert same(written.last.to_dict(), reported)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return math.isclose(one, other, rel_tol=1e-4) if isinstance(one, float) and isinstance(other, float) else one == other


def test_seconds_and_sizes_are_reported(tmp_path: Path) -> None:
    trio = quiet()
    fit(tmp_path, trio)
    events = list(read_lines(ours(tmp_path) / "reports.jsonl"))
    took = [event["seconds"] for event in events if event["event"] == "report"]
    assert all(0 < seconds < 5 for seconds in took)
    epochs = [event for event in events if event["event"] == "epoch"]
    assert [event["epoch"] for event in epochs] == [0, 1]
    assert all(sum(took[3 * i : 3 * i + 3]) < event["seconds"] + 1e-3 for i, event in enumerate(epochs))
    assert {event["bytes"] for event in epochs} == {sum(monitor.member.table_bytes for monitor in trio)}


def test_without_a_logger_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fit(tmp_path, logger=False)
    fit(tmp_path, logger=CSVLogger(tmp_path / "x"), callbacks=quiet(report_dir=None))
    fit(tmp_path, logger=True, fast_dev_run=True)
    assert files(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x"]


def test_a_directory_can_be_named(tmp_path: Path) -> None:
    fit(tmp_path, quiet(report_dir=str(tmp_path / "mine")), logger=False)
    assert files(tmp_path) == [f"mine/lightning_hooks/{name}" for name in FILES]
    fit(tmp_path, quiet(report_dir=tmp_path / "mine"), logger=CSVLogger(tmp_path / "logs"), epochs=1)
    assert read_run(tmp_path / "mine").epochs == [0]
    fit(tmp_path / "off", quiet(report_dir=False), logger=CSVLogger(tmp_path / "off"))  # as Lightning's logger=False
    assert files(tmp_path / "off") == []
    with pytest.raises(TypeError, match=r"report_dir must be 'auto', a directory, or None for nowhere; got True\."):
        FeatureStatsMonitor(report_dir=True)


def test_of_two_loggers_the_first_has_the_files(tmp_path: Path) -> None:
    both = [TensorBoardLogger(tmp_path, name="a", version=0), CSVLogger(tmp_path, name="b", version=0)]
    fit(tmp_path, logger=both, epochs=1)
    assert files(tmp_path) == [f"a/version_0/lightning_hooks/{name}" for name in FILES]


class Failing(Callback):
    def __init__(self, error: BaseException, epoch: int = 1, when: str = "on_train_batch_end") -> None:
        setattr(self, when, self.fail)
        self.error, self.epoch = error, epoch

    def fail(self, trainer: Any, *args: Any) -> None:
        if trainer.current_epoch == self.epoch:
            raise self.error


@pytest.mark.parametrize("when", ["on_train_batch_end", "on_train_end"])
@pytest.mark.parametrize("first", [True, False])
def test_after_an_exception_the_report_says_so(tmp_path: Path, when: str, first: bool) -> None:
    failing = Failing(ValueError("the <disk> is gone"), 1 if when == "on_train_batch_end" else 2, when)
    with pytest.raises(ValueError, match="the <disk> is gone"):
        fit(tmp_path, [failing, *quiet()] if first else [*quiet(), failing])
    run = read_run(tmp_path)
    if when == "on_train_end" and not first:
        assert run.end["how"] == "finished"  # the monitors' training was over by then
        return
    assert (run.end["how"], run.end["error"]) == ("exception", "ValueError: the <disk> is gone")
    assert run.epochs == ([0] if when == "on_train_batch_end" else [0, 1])
    (verdict,) = data_of((ours(tmp_path) / "report.html").read_text())["page"]["verdicts"]
    assert "Training ended with ValueError: the <disk> is gone (epoch " in verdict["headline"]


def test_an_alert_that_ends_training_is_in_the_report(tmp_path: Path) -> None:
    model = Classifier(mlp())
    torch.nn.init.constant_(model.net[0].bias, -20.0)
    with pytest.raises(RuntimeError, match=r"dead at net\.1"):
        fit(tmp_path, quiet(on_alert="raise"), model=model)
    run = read_run(tmp_path)
    assert run.epochs == [0]
    assert judge(run).headline == "Dead units at net.1, since epoch 0. on_alert='raise' ended training at step 7."
    assert [recorded.prefix for recorded in run.monitors] == ["features", "gradient_flow", "gradient_clip"]


@pytest.mark.parametrize("broken", ["_lines", "_conclude"])
def test_a_full_disk_is_reported_once_and_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    target = "append" if broken == "_lines" else "write_health"
    monkeypatch.setattr(f"lightning_hooks.session.run_record.{target}", full)
    with pytest.warns(UserWarning, match="The health report in .* cannot be written: OSError: .*No space left on device") as caught:
        run = fit(tmp_path, epochs=3)
    assert run.state.finished
    assert run.callbacks[0].report.epoch == 2
    assert len([warning for warning in caught if "health report" in str(warning.message)]) == 1


def test_history_draws_and_reports(tmp_path: Path) -> None:
    features, flow, clip = trio = quiet()
    for monitor in trio:
        with pytest.raises(ValueError, match=f"{type(monitor).__name__} has no report yet"):
            monitor.plot()
    fit(tmp_path, trio, epochs=3, logger=False)
    for monitor in trio:
        assert [report.epoch for report in monitor.history] == [0, 1, 2]
        assert monitor.history[-1] is monitor.report
    assert features.plot().axes[0].get_title(loc="left").startswith("Output dead_fraction by module")
    assert flow.plot().axes[0].get_title(loc="left").startswith("Gradient flow, epoch 2")
    assert clip.plot().axes[0].get_title(loc="left").startswith("Gradient clipping, 0-SGD")
    assert flow.plot("update_ratio").axes[0].get_title(loc="left").startswith("Gradient update_ratio by parameter")
    table = flow.to_frame()
    assert len(table) == 3 * (5 + 6 + 1)
    row = table[(table.epoch == 1) & (table.name == "net.2.weight")]
    assert row.of.item() == "parameter"
    assert row.rms.item() == flow.history[1].parameters["net.2.weight"].rms


def test_the_picture_without_a_rectifier_is_the_spread() -> None:
    features = FeatureStatsMonitor(modules="net.[024]", summary=False)
    trainer([features]).fit(Classifier(mlp()), loader())
    assert features.plot().axes[0].get_title(loc="left").startswith("Output std by module")
    ranges = ActivationRangeObserver(summary=False)
    trainer([ranges]).fit(Classifier(mlp()), loader())
    assert ranges.plot().axes[0].get_title(loc="left").startswith("Output scale by module")


def test_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.session.windows.MOST_ROWS", 12)
    flow = GradientFlowMonitor(every_n_steps=1, summary=False)
    trainer([flow], max_epochs=3).fit(Classifier(mlp()), loader())
    assert [report.epoch for report in flow.history] == [2]


def test_copies_and_pickles_are_whole_and_silent(tmp_path: Path) -> None:
    class Copying(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            self.copies = copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))

    ours, copying = quiet(), Copying()
    fit(tmp_path, [*ours, copying], epochs=2)
    for features, *_ in copying.copies:
        assert features.history[-1].epoch == 1
        assert features.member.session is None
        assert features.to_frame().epoch.max() == 1


def test_a_killed_run_can_be_reported_later(tmp_path: Path) -> None:
    class Killed(Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if trainer.current_epoch == 1:
                (tmp_path / "then.jsonl").write_bytes((ours(tmp_path) / "reports.jsonl").read_bytes())

    fit(tmp_path, [*quiet(), Killed()], epochs=3)
    run = read_run(tmp_path / "then.jsonl")
    assert run.epochs == [0, 1]
    assert judge(run).details[0] == "Training was still running when this was written, or was killed."


def test_files_are_handed_to_trackers_that_keep_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    monkeypatch.setattr("lightning_hooks.trackers.Trackers.file", lambda self, path, step: kept.append(path.name))
    fit(tmp_path, epochs=1)
    assert sorted(kept) == FILES


def test_lines_are_strict_json_when_all_is_nan(tmp_path: Path) -> None:
    model = Classifier(mlp(), lr=float("nan"))
    fit(tmp_path, model=model)
    for text in (ours(tmp_path) / "reports.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=pytest.fail)
    assert judge(read_run(tmp_path)).status == "critical"


def test_modules_of_any_name_stay_in_their_files(tmp_path: Path) -> None:
    model = Classifier(mlp())
    model.net.add_module("../<script>alert(1)</script>".replace(".", "\u2024"), torch.nn.Tanh())
    run = trainer(quiet(), logger=CSVLogger(tmp_path, name="<b>name", version="<i>v"), max_epochs=1)
    run.fit(model, loader())
    (folder,) = tmp_path.glob("**/lightning_hooks")
    assert sorted(path.name for path in folder.iterdir()) == ["Verdict", *FILES]
    text = (folder / "report.html").read_text()
    assert "<script>" not in text
    assert any("<script>alert(1)</script>" in said for said in texts(data_of(text)))
    assert "<b>name/<i>v" in data_of(text)["page"]["title"]


def test_only_the_first_rank_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(quiet(report_dir=tmp_path), max_epochs=1)
    monkeypatch.setattr(type(run), "is_global_zero", property(lambda self: False))
    run.fit(Classifier(mlp()), loader())
    assert run.callbacks[0].history
    assert list(tmp_path.iterdir()) == []


def test_a_large_file_has_tables_of_fewer_reports_and_of_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightning_hooks.session.run_record.MOST_BYTES", 20_000)
    fit(tmp_path, epochs=12)
    run = read_run(tmp_path)
    for recorded in run.monitors:
        kept = list(recorded.columns)
        assert kept[:2] == [0, 1]
        assert kept[-1] == recorded.last.epoch == 11
        assert len(kept) < len(recorded.epochs) == 12
