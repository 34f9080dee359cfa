"""What the model logs is kept in the run's file and drawn next to the loss, and nothing of it is computed for that."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lightning_hooks import TrainingMonitor, watch
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.data import compared, whole
from lightning_hooks.run_report.lines import REPORTS
from lightning_hooks.run_report.page import health_markdown
from lightning_hooks.run_report.recorded import Run
from lightning_hooks.session.run_record import MOST_METRICS
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.pages import of_kind, section_of


class Logged(Classifier):
    """Logs objects, values of epochs, and values of steps."""

    def __init__(self, more: int = 0) -> None:
        super().__init__(mlp())
        self.train_acc, self.val_acc = MulticlassAccuracy(3, average="micro"), MulticlassAccuracy(3, average="micro")
        self.val_f1 = MulticlassF1Score(3)
        self.more = more

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.train_acc(logits, y)
        self.log("train_acc", self.train_acc, on_step=True, on_epoch=True)
        self.log("train/loss", loss, on_epoch=True, on_step=False)
        self.log("of_step", loss)
        self.log("a whole vector", loss)
        for number in range(self.more):
            self.log(f"more_{number}", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        logits = self.net(x)
        self.val_acc(logits, y)
        self.val_f1.update(logits, y)
        self.log("val_acc", self.val_acc)
        self.log("val_loss", nn.functional.cross_entropy(logits, y))

    def on_validation_epoch_end(self) -> None:
        self.log("val_f1", self.val_f1.compute())
        self.val_f1.reset()


def fitted(folder: Path, model: Logged | None = None, epochs: int = 3, **kwargs: Any) -> Run:
    torch.manual_seed(0)
    monitor = TrainingMonitor(summary=False, every_n_steps=1, **kwargs)
    logger = CSVLogger(folder.parent, name="", version=folder.name)
    fit = trainer([monitor], max_epochs=epochs, logger=logger, num_sanity_val_steps=2, log_every_n_steps=1)
    fit.fit(model or Logged(), loader(), loader())
    return read_run(folder)


def logged(folder: Path, name: str) -> list[float]:
    with (folder / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


def test_every_epoch_has_the_numbers_that_the_logger_has(tmp_path: Path) -> None:
    run = fitted(tmp_path / "run")
    assert sorted(run.metrics) == ["a whole vector", "of_step", "train/loss", "train_acc", "val_acc", "val_f1", "val_loss"]
    of_epoch = {"val_acc": "val_acc", "val_f1": "val_f1", "val_loss": "val_loss", "train/loss": "train/loss"}
    for name, column in (of_epoch | {"train_acc": "train_acc_epoch"}).items():
        expected = logged(tmp_path / "run", column)
        assert len(expected) == 3
        assert [run.metric(name, epoch) for epoch in range(3)] == pytest.approx(expected, rel=1e-4)
    assert [run.metric("of_step", epoch) for epoch in range(3)] == pytest.approx(
        logged(tmp_path / "run", "of_step")[6::7], rel=1e-4
    )


def test_they_are_drawn_next_to_the_loss(tmp_path: Path) -> None:
    run = fitted(tmp_path / "run")
    found = of_kind(section_of(whole(run, 0.0), "training"), "chart")
    charts = {chart["title"]: {line["label"]: line["values"] for line in chart["lines"]} for chart in found}
    titles = [*charts]
    assert titles.index("Loss") < titles.index("acc") < titles.index("Learning rate")
    assert {title: [*charts[title]] for title in titles[: titles.index("Learning rate")]} == {
        "Loss": ["mean loss of the training batches", "val_loss", "train/loss"],
        "acc": ["train_acc", "val_acc"],
        "of_step": ["of_step"],
        "a whole vector": ["a whole vector"],
        "f1": ["val_f1"],
    }
    assert next(iter(charts)) == "Loss"
    assert charts["acc"]["val_acc"] == pytest.approx([run.metric("val_acc", epoch) for epoch in range(3)], rel=1e-3)
    assert r"| epoch | train\_acc | val\_acc |" in health_markdown(run)


def test_two_runs_are_compared_by_them(tmp_path: Path) -> None:
    a, b = fitted(tmp_path / "a"), fitted(tmp_path / "b", epochs=2)
    rows = {what: values for what, *values in compare(a, b).losses}
    assert rows["val_acc, epoch 1"] == [a.metric("val_acc", 1), b.metric("val_acc", 1)]
    assert rows["val_acc, last epoch"] == [a.metric("val_acc", 2), b.metric("val_acc", 1)]
    (set_up,) = of_kind(section_of(compared(compare(a, b)), "set-up"), "table")
    assert "val_acc, last epoch" in [row[0] for row in set_up["rows"]]


def test_shorter_windows_keep_what_is_known_at_their_end(tmp_path: Path) -> None:
    run = fitted(tmp_path / "run", report_every_n_steps=3)
    places = sorted(run.timing)
    assert [math.isnan(run.metric("val_acc", place)) for place in places] == [True, True, False] * 3
    assert not any(math.isnan(run.metric("of_step", place)) for place in places)
    expected = logged(tmp_path / "run", "train_acc_epoch")
    assert [run.metric("train_acc", place) for place in places[2::3]] == pytest.approx(expected, rel=1e-4)


def test_of_very_many_the_first_are_kept(tmp_path: Path) -> None:
    run = fitted(tmp_path / "run", Logged(more=100), epochs=2)
    assert len(run.metrics) == MOST_METRICS
    titles = [chart["title"] for chart in of_kind(section_of(whole(run, 0.0), "training"), "chart")]
    assert 0 < sum(title.startswith("more_") for title in titles) < 12


def test_a_damaged_line_has_none(tmp_path: Path) -> None:
    fitted(tmp_path / "run", epochs=1)
    file = tmp_path / "run" / "lightning_hooks" / REPORTS
    with file.open("a") as out:
        out.write('{"event":"epoch","epoch":0,"metrics":"oops"}\n')
    assert read_run(tmp_path / "run").metrics == []


class Watched(Metric):
    """Notes what is called, and in which hook of the model's."""

    total: Tensor

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.add_state("total", torch.zeros(()), "sum")
        self.seen = seen

    def update(self, value: Tensor) -> None:
        self.seen.append("update")
        self.total += value

    def compute(self) -> Tensor:
        self.seen.append(f"compute {float(self.total):.6g}")
        return self.total / 2

    def reset(self) -> None:
        if "seen" in vars(self):
            self.seen.append("reset")
        super().reset()


class Late(Classifier):
    """Updates a metric that it logs as an object in on_train_epoch_end too, after the monitors' hook."""

    def __init__(self) -> None:
        super().__init__(mlp())
        self.seen: list[str] = []
        self.metric, self.of_validation = Watched(self.seen), Watched(self.seen)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.metric.update(loss.detach())
        self.log("metric", self.metric, on_epoch=True, on_step=False, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.of_validation(batch[0].mean())
        self.log("of_validation", self.of_validation)

    def on_train_epoch_end(self) -> None:
        self.seen.append("on_train_epoch_end")
        self.metric.update(torch.tensor(100.0))


@pytest.mark.parametrize("arguments", [{}, {"report_every_n_steps": 3}, {"progress_bar": True}, {"logged": "all"}])
def test_nothing_of_a_metric_is_computed_for_it(arguments: dict[str, Any], tmp_path: Path) -> None:
    def run(*callbacks: Any) -> tuple[list[str], float]:
        torch.manual_seed(0)
        model = Late()
        fit = trainer(callbacks, max_epochs=2, logger=CSVLogger(tmp_path))
        fit.fit(model, loader(), loader())
        return model.seen, float(fit.callback_metrics["metric"])

    with_it = run(TrainingMonitor(summary=False, every_n_steps=1, **arguments))
    assert with_it == run()
    assert with_it[1] > 50


def test_of_another_loop_what_is_passed_to_step_is_kept(tmp_path: Path) -> None:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    accuracies: list[float] = []
    with watch(net, optimizer, summary=False, log_dir=tmp_path) as monitor:
        for _ in range(2):
            for x, y in loader():
                logits = net(x)
                loss = nn.functional.cross_entropy(logits, y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                accuracies.append((logits.argmax(1) == y).float().mean().item())
                monitor.step(loss, metrics={"acc": accuracies[-1], "loss": loss * 2, "name": "text"})
            monitor.end_validation({"val_loss": 0.5, "val_acc": torch.tensor(0.25)})
            monitor.end_window()
    run = read_run(tmp_path)
    assert sorted(run.metrics) == ["acc", "loss", "val_acc", "val_loss"]
    assert [run.metric("acc", place) for place in sorted(run.timing)] == pytest.approx(accuracies[6::7], rel=1e-4)
    assert [run.metric("val_acc", place) for place in sorted(run.timing)] == [0.25, 0.25]
    assert monitor.gradients is not None
    assert monitor.gradients.loss is not None
    assert [one.loss for one in monitor.gradients.loss.validations] == [0.5, 0.5]


def test_metrics_that_are_no_mapping_raise() -> None:
    net = mlp()
    message = r"metrics must be numbers or tensors of one by name, such as {'accuracy': 0.9}; got 0.5\."
    wrong: Callable[[Any], Any] = lambda value: value  # noqa: E731
    with watch(net, torch.optim.SGD(net.parameters(), lr=0.1), summary=False) as monitor, pytest.raises(TypeError, match=message):
        monitor.step(metrics=wrong(0.5))
