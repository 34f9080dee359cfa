"""What the model logs is kept in the run's file and drawn next to the loss, and nothing of it is computed for that."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lightning_hooks import TrainingMonitor
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.recorded import Run
from tests.support.models import Classifier, loader, mlp, trainer


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
