"""Windows of training batches: reports, tags and alerts every so many batches, and what becomes of the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_hooks import Alert, GradientFlowMonitor, TrainingMonitor
from lightning_hooks.alerts import FeatureReport, Rule
from tests.support.interruptions import Batches, SaveAt
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import Recorder, assert_same, assert_stats, reference_stats, same_state, total_norm

NAMES = ["net.0", "net.1", "net.2"]
ENDS = [10, 20, 25]


def fit(n: int = 200, callbacks: Any = (), window: Any = 10, **kwargs: Any) -> tuple[TrainingMonitor, Recorder, Classifier, Any]:
    torch.manual_seed(0)
    model, recorder = Classifier(mlp()), Recorder(NAMES)
    kwargs = {"max_epochs": 1, **kwargs}
    ours = TrainingMonitor(every_n_steps=1, report_every_n_steps=window, summary=False)
    run = trainer([recorder, *callbacks, ours], **kwargs)
    run.fit(model, loader(n=n))
    return ours, recorder, model, run


def windows(values: list[Any]) -> list[list[Any]]:
    return [values[first:last] for first, last in zip([0, *ENDS], ENDS, strict=False)]


def test_windows_and_the_epoch_have_the_numbers_of_a_slow_reference() -> None:
    ours, recorder, model, _ = fit()
    history = ours.history
    assert [(report.epoch, report.window, report.step, report.batches) for report in history["features"]] == [
        (0, 0, 10, 10), (0, 1, 20, 10), (0, 2, 25, 5),
    ]  # fmt: skip
    for name in NAMES:
        for kind, table, values in (
            ("features", "sites", recorder.outputs[name]),
            ("gradients", "modules", recorder.gradients[name]),
        ):
            for report, chunks in zip(history[kind], windows(values), strict=True):
                assert_stats(getattr(report, table)[name], reference_stats(chunks), 1e-5, f"{kind} {report.when}")
            assert_stats(getattr(getattr(ours, kind), table)[name], reference_stats(values), 1e-5, f"{kind} of the epoch")
    norms = [total_norm(step) for step in recorder.steps]
    of_weight = [np.linalg.norm(step["net.0.weight"]) for step in recorder.steps]
    for place, chunk in enumerate([*windows(norms), norms]):
        clips, flow = (ours.clipping, ours.gradients) if place == 3 else (history["clipping"][place], history["gradients"][place])
        stats = clips.optimizers["0-SGD"]
        assert (stats.steps, clips.window) == (len(chunk), None if place == 3 else place)
        assert stats.norm_before == pytest.approx(np.mean(chunk), rel=1e-5)
        assert stats.norm_before_max == pytest.approx(np.max(chunk), rel=1e-5)
        assert flow.total_norm == pytest.approx(np.mean(chunk), rel=1e-5)
        expected = [*windows(of_weight), of_weight][place]
        assert flow.parameters["net.0.weight"].norm == pytest.approx(np.mean(expected), rel=1e-5)
        assert flow.parameters["net.0.weight"].norm_max == pytest.approx(np.max(expected), rel=1e-5)
        losses = [*windows(model.losses), model.losses][place]
        assert flow.loss.mean == pytest.approx(np.mean(losses), rel=1e-5)
        assert flow.loss.std == pytest.approx(np.std(losses), rel=1e-4)
        assert (flow.loss.min, flow.loss.max) == pytest.approx((min(losses), max(losses)), rel=1e-5)
        assert flow.loss.last == pytest.approx(losses[-1], rel=1e-5)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(0)
        while True:
            yield torch.randn(4, 8, generator=generator), torch.randint(0, 3, (4,), generator=generator)


def test_a_stream_without_an_end_has_windows() -> None:
    ours = TrainingMonitor(summary=False)
    run = trainer([ours], max_steps=1100, max_epochs=None)
    run.fit(Classifier(mlp()), DataLoader(Stream(), batch_size=None))
    assert [(report.step, report.batches, report.sampled_batches) for report in ours.history["features"]] == [
        (500, 500, 50), (1000, 500, 50), (1100, 100, 10),
    ]  # fmt: skip
    assert ours.features is not None
    assert (ours.features.window, ours.features.batches) == (None, 1100)


def test_a_window_without_an_optimizer_step_reports_no_update() -> None:
    monitor = GradientFlowMonitor(every_n_steps=1, report_every_n_steps=2, summary=False)
    trainer([monitor], max_epochs=1, accumulate_grad_batches=4).fit(Classifier(mlp()), loader(n=64))
    without, with_step = list(monitor.history)[:2]
    assert without.parameters == {}
    assert math.isnan(without.total_norm)
    assert without.modules["net.0"].calls == 2
    assert with_step.parameters["net.0.weight"].steps == 1
    assert with_step.parameters["net.0.weight"].update_ratio > 0


class Reports(Callback):
    def __init__(self, ours: TrainingMonitor) -> None:
        self.ours, self.found = ours, []  # type: ignore[var-annotated]

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.found.append((self.ours.features, self.ours.gradients, self.ours.clipping))


def resumable(path: Path | None = None, callbacks: Any = ()) -> tuple[Classifier, Reports, TrainingMonitor]:
    torch.manual_seed(0)
    model = Classifier(mlp())
    ours = TrainingMonitor(every_n_steps=1, report_every_n_steps=3, summary=False)
    reports = Reports(ours)
    run = trainer([ours, reports, *callbacks], max_epochs=2, use_distributed_sampler=False)
    run.fit(model, Batches((8,)), ckpt_path=path, weights_only=True if path else None)
    return model, reports, ours


@pytest.mark.parametrize("at", [(0, 1), (0, 2), (0, 3), (1, 4)], ids=str)
def test_a_resume_inside_a_window_equals_the_uninterrupted_run(at: tuple[int, int], tmp_path: Path) -> None:
    whole, expected, uninterrupted = resumable()
    with pytest.raises(SystemExit):
        resumable(callbacks=[SaveAt(tmp_path / "mid.ckpt", *at)])
    resumed, found, ours = resumable(tmp_path / "mid.ckpt")
    assert same_state(whole, resumed)
    assert len(found.found) == 2 - at[0]
    for epoch, other in zip(found.found, expected.found[at[0] :], strict=True):
        assert_same(epoch, other, rel=1e-12)
    for kind, reports in ours.history.items():
        later = list(uninterrupted.history[kind])[-len(reports) :]
        assert_same(tuple(reports), tuple(later), rel=1e-12)


def alert_of(report: Any, kind: str) -> Alert:
    return Alert(kind, "net.0", 1.0, 0.0, report.epoch, report.step, "warning", diagnosis="made")


class OfWindows(Rule):
    kind: ClassVar[str] = "of_windows"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        if report.window == 1:
            yield alert_of(report, self.kind)


class OfEpochs(Rule):
    kind: ClassVar[str] = "of_epochs"
    judges = "epoch"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        assert report.batches >= 25
        yield alert_of(report, self.kind)


def test_a_rule_that_judges_epochs_waits_for_the_epoch() -> None:
    ours = TrainingMonitor(every_n_steps=1, report_every_n_steps=10, summary=False, rules=[OfWindows(), OfEpochs()])
    passed_on: list[tuple[str, int]] = []
    ours.subscribe(lambda alert: passed_on.append((alert.kind, alert.step)))
    trainer([ours], max_epochs=2).fit(Classifier(mlp()), loader(n=200))
    of_ours = [one for one in passed_on if one[0] != "no_progress"]  # labels at random
    assert of_ours == [("of_windows", 20), ("of_epochs", 25), ("of_windows", 45)]  # two windows without it end an alert
    found = [{alert.kind for alert in report.alerts} for report in ours.history["features"]]
    assert found == [set(), {"of_windows"}, {"of_epochs"}, {"of_epochs"}, {"of_windows", "of_epochs"}, {"of_epochs"}]
    assert ours.features is not None
    assert {alert.kind for alert in ours.features.alerts} == {"of_windows", "of_epochs"}  # what its windows had


def test_on_alert_stop_ends_a_run_within_a_window() -> None:
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3))
    model = Classifier(net)
    model.optimizer = lambda parameters, lr: torch.optim.SGD(parameters, lr=1e6)  # type: ignore[assignment]
    ours = TrainingMonitor(every_n_steps=1, report_every_n_steps=5, on_alert="raise", summary=False)
    with pytest.raises(RuntimeError, match=r"nonfinite|exploding"):
        trainer([ours], max_epochs=1).fit(model, loader(n=400))
    assert len(model.losses) <= 10


@pytest.mark.parametrize(
    ("window", "error"), [(0, ValueError), (-5, ValueError), (2.5, TypeError), (True, TypeError), ("epoch", TypeError)]
)
def test_what_is_no_window_is_an_error(window: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"report_every_n_steps must be .*at least 1, 'auto', or None for epochs"):
        TrainingMonitor(report_every_n_steps=window)
