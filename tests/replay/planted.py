"""A training with metrics, batch normalisation and dropout whose sample 77 makes the loss infinite."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchmetrics
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.support.models import trainer

BAD = 77


class Fault(nn.Module):
    """An operation that fails on a sample whose first feature is 0, and on no other."""

    def __init__(self, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.operation = operation

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self.operation(x, h)


class Net(LightningModule):
    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2))
        self.head, self.accuracy = nn.Linear(hidden, 3), torchmetrics.Accuracy(task="multiclass", num_classes=3)
        self.calls, self.losses = 0, []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.calls += 1
        x, y = batch
        z = self.head(self.body(x + 0.01 * torch.randn_like(x) * random.random() * np.random.rand()))  # noqa: NPY002  as users do
        self.accuracy(z, y)
        self.log("accuracy", self.accuracy)
        loss = nn.functional.cross_entropy(z, y) + torch.log(x[:, 0]).mean() * z.mean()
        self.losses.append(loss.detach().clone())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def data(bad: bool = True) -> Dataset[Any]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.rand(160, 4, generator=generator) + 0.1, torch.randint(0, 3, (160,), generator=generator)
    x[BAD, 0] = 0.0 if bad else x[BAD, 0]
    return TensorDataset(x, y)


def fit(callbacks: list[Any], bad: bool = True, model: LightningModule | None = None, **options: Any) -> Any:
    """Train; return the model, with all that training leaves behind."""
    seed_everything(5, verbose=False)
    model = Net() if model is None else model
    running = trainer(callbacks, **{"max_epochs": 1, **options})
    running.fit(model, DataLoader(data(bad), batch_size=8, shuffle=True))
    model.left = (  # type: ignore[assignment]
        repr([value.tolist() for value in model.state_dict().values()]),
        repr([loss.tolist() for loss in getattr(model, "losses", [])]),
        (torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())),  # noqa: NPY002  as users do
        repr([{k: repr(v) for k, v in s.items()} for s in running.optimizers[0].state.values()]),
        repr({name: float(value) for name, value in running.callback_metrics.items() if "/" not in name}),
        getattr(model, "calls", 0),
    )
    return model


def capsule(folder: Path, **options: Any) -> Path:
    """The capsule of the planted training."""
    from lightning_hooks import TrainingMonitor

    fit([TrainingMonitor(summary=False, capsule=folder, **options)])
    [path] = folder.iterdir()
    return path
