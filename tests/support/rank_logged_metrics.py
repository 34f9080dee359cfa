"""Twelve metrics of torchmetrics in two DDP processes over gloo, with and without the monitors; pickled for the test to compare."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import MeanMetric, Metric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassAveragePrecision,
    MulticlassCalibrationError,
    MulticlassCohenKappa,
    MulticlassF1Score,
    MulticlassHingeLoss,
    MulticlassJaccardIndex,
    MulticlassMatthewsCorrCoef,
    MulticlassPrecision,
    MulticlassRecall,
    MulticlassSpecificity,
)

from lightning_hooks import TrainingMonitor
from tests.support.models import Classifier, loader, mlp, trainer

TWELVE = (
    *(MulticlassAccuracy, MulticlassAUROC, MulticlassAveragePrecision, MulticlassCalibrationError, MulticlassCohenKappa),
    *(MulticlassF1Score, MulticlassHingeLoss, MulticlassJaccardIndex, MulticlassMatthewsCorrCoef, MulticlassPrecision),
    *(MulticlassRecall, MulticlassSpecificity),
)


class Measured(Classifier):
    """Updates a collection by forward in training, one by update in validation; logs objects, values of batches and of epochs."""

    def __init__(self) -> None:
        super().__init__(mlp())
        metrics = MetricCollection([kind(3) for kind in TWELVE])
        self.train_metrics, self.val_metrics = metrics.clone(prefix="train/"), metrics.clone(prefix="val/")
        self.mean = MeanMetric()
        self.seen: list[Any] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        loss = nn.functional.cross_entropy(logits, y)
        values = self.train_metrics(logits.softmax(-1), y)
        self.log_dict({f"batch_{name}": value for name, value in values.items()}, on_epoch=True, sync_dist=True)
        self.log_dict(self.train_metrics, on_step=False, on_epoch=True)
        self.mean.update(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean", self.mean.compute())
        self.mean.reset()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.val_metrics.update(self.net(batch[0]).softmax(-1), batch[1])

    def on_validation_epoch_end(self) -> None:
        self.seen.append(states(self))
        self.log_dict(self.val_metrics.compute())
        self.val_metrics.reset()


def states(model: nn.Module) -> dict[str, Any]:
    """The states of all metrics, with their counts of updates, copied."""
    found: dict[str, Any] = {}
    for name, metric in model.named_modules():
        if isinstance(metric, Metric):
            found[name] = [metric.update_count, {key: _copied(value) for key, value in metric.metric_state.items()}]
    return found


def _copied(value: Any) -> Any:
    return [one.clone() for one in value] if isinstance(value, list) else value.clone()


def fitted(*callbacks: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Measured()
    fit = trainer(list(callbacks), strategy="ddp", devices=2, max_epochs=2, num_sanity_val_steps=1)
    fit.fit(model, loader(n=160), loader(n=80))
    logged = {name: value.item() for name, value in fit.callback_metrics.items() if not name.startswith(OWN)}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    return {
        "logged": logged,
        "weights": weights,
        "states": [*model.seen, states(model)],
        "losses": model.losses,
        "rng": torch.get_rng_state(),
    }


OWN = ("features/", "gradient_flow/", "gradient_clip/", "learning/", "loss/", "optimizers/")


def main(folder: Path) -> None:
    monitor = TrainingMonitor(every_n_steps=1, summary=False, report_dir=folder)
    with_it, without = fitted(monitor), fitted()
    assert monitor.gradients is not None
    found = {"with": with_it, "without": without, "report": monitor.gradients}
    (folder / f"{os.environ['LOCAL_RANK']}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
