"""A step that is run again leaves training as it is, to the bit; and what the alert says of steps that are not simple."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_hooks import TrainingMonitor
from tests.replay.planted import BAD, Net, data, fit
from tests.support.models import trainer


def nonfinite(monitor: Any) -> Any:
    alerts = monitor.alerts if isinstance(monitor, TrainingMonitor) else monitor.report.alerts
    return next(alert for alert in alerts if "nonfinite" in alert.kind and not alert.cause)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_weights_losses_generators_metrics_and_attributes_are_the_same_to_the_bit(accumulate: int, tmp_path: Path) -> None:
    expected = fit([], accumulate_grad_batches=accumulate).left
    monitor = TrainingMonitor(summary=False, capsule=tmp_path)
    assert fit([monitor], accumulate_grad_batches=accumulate).left == expected
    alert = nonfinite(monitor)
    assert alert.samples == (BAD,)
    assert "log of 0 gives -inf in Net.training_step, planted.py" in alert.seen
    assert "to the bit" not in alert.seen


class WritesIntoItsBatch(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("growing", torch.zeros(0), persistent=False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch.pop("x"), batch.pop("y")
        x[:, 1].add_(0.01)
        self.growing.data = torch.cat([self.growing, x[:1, 0]])
        return super().training_step((x, y), batch_idx)


class Batches:
    def __init__(self) -> None:
        self.all = [{"x": x.clone(), "y": y} for x, y in DataLoader(data(), batch_size=8)]

    def __iter__(self) -> Iterator[Any]:
        return ({**batch} for batch in self.all)


def test_a_step_that_writes_into_its_batch_is_run_again_without_a_trace(tmp_path: Path) -> None:
    left = []
    for callbacks in ([], [TrainingMonitor(summary=False, capsule=tmp_path)]):
        seed_everything(5, verbose=False)
        batches, model = Batches(), WritesIntoItsBatch()
        trainer(callbacks, max_epochs=2).fit(model, batches)
        left.append(repr([batches.all, model.state_dict(), model.growing.tolist()]))
    assert left[0] == left[1]
    alert = nonfinite(callbacks[0])
    assert "1 of 8 inputs is 0." in alert.seen
    [folder] = tmp_path.iterdir()
    assert json.loads((folder / "capsule.json").read_text())["blame"]["rows"] == [BAD % 8]


class Flaky(Net):
    """Infinite at its tenth call, whatever the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        Flaky.total += 1
        return super().training_step(batch, batch_idx) * (torch.inf if Flaky.total == 10 else 1.0)

    total = 0


def test_a_step_that_does_not_reproduce_is_called_that(tmp_path: Path) -> None:
    Flaky.total = 0
    monitor = TrainingMonitor(summary=False, capsule=tmp_path, learning=False)  # what a class counts is not seen, nor put back
    fit([monitor], bad=False, model=Flaky())
    alert = nonfinite(monitor)
    assert alert.batch in (9, 10)
    assert "was finite: an operation that is not deterministic, or the hardware" in alert.seen
    assert len(alert.samples) == 8


def test_a_model_that_cannot_be_put_back_is_not_run_again(tmp_path: Path) -> None:
    model = Net()
    model.source = iter([1])  # type: ignore[assignment]
    monitor = TrainingMonitor(summary=False, capsule=tmp_path)
    with pytest.warns(UserWarning, match=r"could not be run again: NotRestoredError: model\.source"):
        fit([monitor], model=model)
    assert "The step was not run again: NotRestoredError" in nonfinite(monitor).seen
    assert len(nonfinite(monitor).samples) == 8


def test_the_samples_are_in_the_terminal_the_files_and_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monitor = TrainingMonitor(summary=False, report_dir=tmp_path)
    with caplog.at_level("WARNING", logger="lightning_hooks"):
        fit([monitor])
    assert f"Sample {BAD}." in caplog.text
    lines = [json.loads(line) for line in (tmp_path / "lightning_hooks" / "alerts.jsonl").read_text().splitlines()]
    assert any(line["samples"] == [BAD] for line in lines)
    for name in ("report.html", "report.md", "reports.jsonl"):
        assert str(BAD) in (tmp_path / "lightning_hooks" / name).read_text()
    assert f"Sample {BAD}" in (tmp_path / "lightning_hooks" / "report.html").read_text()
    assert [path.name for path in (tmp_path / "lightning_hooks" / "capsules").iterdir()] == [
        f"nonfinite-step{nonfinite(monitor).batch}"
    ]
