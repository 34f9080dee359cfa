"""One net, one order of data, five training loops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_hooks import TrainingMonitor, watch
from tests.support.models import trainer

EPOCHS, BATCHES, CLIP, RATE = 2, 6, 0.05, 0.5
ARGUMENTS: dict[str, Any] = {"every_n_steps": 2, "report_every_n_steps": None, "summary": False, "on_alert": "log"}


class Samples(Dataset[Any]):
    """Samples as mappings."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(BATCHES * 16, 4, generator=generator)
        self.labels = torch.randint(0, 3, (BATCHES * 16,), generator=generator)

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def batches() -> DataLoader[Any]:
    return DataLoader(Samples(), batch_size=16)


class NetLayers(nn.Module):
    """What all nets here are made of: a dead layer among them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)
        nn.init.constant_(self.first.bias[:7].detach(), -20.0)

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = self.last(self.act(self.first(inputs)))
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


class LitNet(LightningModule):
    """The net in Lightning, with the names that it has elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        layers = NetLayers()
        self.first, self.act, self.last = layers.first, layers.act, layers.last

    forward = NetLayers.forward

    def training_step(self, batch: Mapping[str, Tensor], index: int) -> Tensor:
        return self(**batch)["loss"]

    def configure_optimizers(self) -> Any:
        return sgd(self)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)


Result = tuple[nn.Module, Any]
"""The trained net, and its monitors."""


def in_lightning(folder: Path | None, **arguments: Any) -> Result:
    net = LitNet()
    monitor = TrainingMonitor(**{**ARGUMENTS, "report_dir": folder, **arguments})
    trainer([monitor], max_epochs=EPOCHS, gradient_clip_val=CLIP, logger=False).fit(net, batches())
    return net, monitor


def in_plain_pytorch(folder: Path | None, **arguments: Any) -> Result:
    net = NetLayers()
    optimizer = sgd(net)
    with watch(net, optimizer, log_dir=folder, **{**ARGUMENTS, **arguments}) as monitor:
        for _ in range(EPOCHS):
            for batch in batches():
                loss = net(**batch)["loss"]
                loss.backward()
                nn.utils.clip_grad_norm_(net.parameters(), CLIP)
                optimizer.step()
                optimizer.zero_grad()
                monitor.step(loss)
            monitor.end_window()
    return net, monitor


LOOPS: dict[str, Callable[..., Result]] = {"lightning": in_lightning, "plain": in_plain_pytorch}
