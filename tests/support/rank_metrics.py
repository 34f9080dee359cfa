"""Metrics of modules, and statistics as metrics, in two DDP processes and in one."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchmetrics import CosineSimilarity, MeanMetric, MetricCollection, SumMetric
from torchmetrics import classification as of_classes

from lightning_hooks import FeatureStatsMonitor, TrainingMonitor
from lightning_hooks.metrics import TensorStatistics
from tests.support.metrics import CASES
from tests.support.models import trainer
from tests.support.rank_cases import Shards, SumLoss

TWELVE = (
    *("Accuracy", "Precision", "Recall", "F1Score", "Specificity", "JaccardIndex", "MatthewsCorrCoef", "CohenKappa"),
    *("HammingDistance", "AUROC", "AveragePrecision", "CalibrationError"),
)
"""Of torchmetrics, for several classes."""


class RaisesOnOneRank(MeanMetric):
    def update(self, value: Tensor) -> None:
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            raise ValueError("planted")
        super().update(value)


class Scored(SumLoss):
    """Logs a collection of twelve metrics."""

    def __init__(self, divisor: float) -> None:
        super().__init__(divisor)
        self.scores = MetricCollection({name: getattr(of_classes, f"Multiclass{name}")(num_classes=3) for name in TWELVE})

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        logits = self.net(x)
        self.scores.update(logits.softmax(-1), y)
        return nn.functional.cross_entropy(logits, y, reduction="sum") / self.divisor

    def on_train_epoch_end(self) -> None:
        self.values = {name: value.item() for name, value in self.scores.compute().items()}


def fit(model: SumLoss, monitor: Any, world: int, rank: int, case: str) -> list[Tensor]:
    kwargs: dict[str, Any] = {"strategy": "ddp", "devices": 2, "use_distributed_sampler": False} if world == 2 else {}
    trainer([] if monitor is None else [monitor], max_epochs=2, **kwargs).fit(
        model, DataLoader(Shards(case, rank, world), batch_size=None)
    )
    return [parameter.detach().clone() for parameter in model.parameters()]


def of_modules(world: int, rank: int, case: str) -> dict[str, float]:
    metrics = {
        "net.first": TensorStatistics(),
        ("net.first", "net.act"): CosineSimilarity(reduction="mean"),
        "net.sometimes": SumMetric(),
    }
    monitor = FeatureStatsMonitor(metrics=metrics, every_n_steps=1, summary=False)
    fit(SumLoss(4.0 if world == 2 else 8.0), monitor, world, rank, case)
    return {name: found.value for name, found in monitor.metrics.metrics.items()}


def with_a_fault(world: int, rank: int) -> dict[str, Any]:
    metrics = {"net.first": RaisesOnOneRank(), "net.act": MeanMetric()}
    monitor = FeatureStatsMonitor(metrics=metrics, every_n_steps=1, summary=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(SumLoss(4.0 if world == 2 else 8.0), monitor, world, rank, "uneven")
    texts = [str(warning.message) for warning in caught if "the metric at" in str(warning.message)]
    return {"texts": texts, **{name: found.value for name, found in monitor.metrics.metrics.items()}}


def unchanged(world: int, rank: int) -> Any:
    found = []
    for monitor in (None, TrainingMonitor(metrics={"net.*": MeanMetric()}, every_n_steps=1, summary=False)):
        model = Scored(4.0 if world == 2 else 8.0)
        weights = fit(model, monitor, world, rank, "uneven")
        found.append((weights, model.losses, model.values, torch.get_rng_state()))
    return found


def statistics(world: int, rank: int) -> dict[str, Any]:
    """Each of the package's metrics; rank 0 has the first input, rank 1 the others."""
    found = {}
    for name, (make, inputs, _) in CASES.items():
        metric = make()
        for step, values in enumerate(inputs()):
            together = world == 1 or name == "UpdateRatio"  # which compares with the step before
            if together or (step == 0) == (rank == 0):
                metric.update(values)
        computed: Any = metric.compute()
        found[name] = {key: float(value) for key, value in (computed if isinstance(computed, dict) else {"": computed}).items()}
    return found


def found(rank: int, folder: Path) -> dict[str, Any]:
    return {
        "one_rank_only": of_modules(2, rank, "one_rank_only"),
        "with_a_fault": with_a_fault(2, rank),
        "unchanged": unchanged(2, rank),
        "statistics": statistics(2, rank),  # the process group of the fits is still there
    }
