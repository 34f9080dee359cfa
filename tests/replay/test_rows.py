"""Which samples each batch is made of, as the batch itself says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_hooks import GradientFlowMonitor
from tests.support.models import trainer


class Indices(Dataset[Tensor]):
    """A data set whose samples are their own indices."""

    def __init__(self, size: int = 23, first: int = 0) -> None:
        self.size, self.first = size, first

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(float(index + self.first))


class Model(LightningModule):
    def __init__(self, loaders: Any) -> None:
        super().__init__()
        self.net, self.loaders = nn.Linear(1, 1), loaders

    def train_dataloader(self) -> Any:
        return self.loaders()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first = batch if isinstance(batch, Tensor) else next(iter(batch.values()))
        return self.net(first.reshape(-1, 1)).mean() * 1e-3

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class Compared(Callback):
    """Each batch, with what the evidence says of it."""

    def __init__(self, monitor: GradientFlowMonitor) -> None:
        self.monitor, self.pairs, self.changed = monitor, [], []

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        session = self.monitor.member.session
        assert session is not None
        last = session.evidence.ring._entries[-1]
        self.pairs.append((batch, last.rows))


def fit(loaders: Any, **options: Any) -> list[tuple[Any, Any]]:
    monitor = GradientFlowMonitor(summary=False)
    compared = Compared(monitor)
    trainer([monitor, compared], **{"max_epochs": 2, **options}).fit(Model(loaders))
    return compared.pairs


@pytest.mark.parametrize(
    ("loader", "options"),
    [
        (lambda: DataLoader(Indices(), batch_size=4, shuffle=True), {}),
        (lambda: DataLoader(Indices(), batch_size=4, shuffle=True), {"reload_dataloaders_every_n_epochs": 1}),
        (lambda: DataLoader(Indices(), batch_size=4, shuffle=True, num_workers=2), {}),
        (lambda: DataLoader(Indices(), batch_size=4, shuffle=True, num_workers=2, persistent_workers=True), {}),
        (lambda: DataLoader(Indices(), batch_sampler=[[3, 1], [2], [7, 5, 0]]), {}),
        (lambda: DataLoader(Indices(), batch_size=4, shuffle=True), {"limit_train_batches": 3}),
        (lambda: DataLoader(Indices(), batch_size=None, shuffle=True), {}),
    ],
)
def test_indices_of_a_map_style_data_set(loader: Any, options: dict[str, Any]) -> None:
    pairs = fit(loader, **options)
    assert len(pairs) >= 6
    for batch, rows in pairs:
        assert rows.samples() == tuple(batch.reshape(-1).int().tolist())


def test_loaders_and_the_strategy_are_left_as_they_were() -> None:
    loader = DataLoader(Indices(), batch_size=4)
    before = dict(vars(loader))
    monitor = GradientFlowMonitor(summary=False)
    running = trainer([monitor], max_epochs=1)
    running.fit(Model(lambda: loader))
    assert vars(loader) == before
    assert "process_dataloader" not in vars(running.strategy)
    with pytest.raises(ZeroDivisionError):
        failing = trainer([monitor, Failing()], max_epochs=1)
        failing.fit(Model(lambda: loader))
    assert vars(loader) == before
    assert "process_dataloader" not in vars(failing.strategy)


class Failing(Callback):
    def on_train_batch_end(self, *args: Any) -> None:
        raise ZeroDivisionError
