"""Data, small nets and loops that several bugs and programs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.bugs.cases import Recipe
from tests.evidence.faults import data

EPOCHS: dict[str, Any] = {"max_epochs": 2}


def two_ranks() -> dict[str, Any]:
    """Arguments of a Trainer of two processes over gloo."""
    return {**EPOCHS, "strategy": DDPStrategy(process_group_backend="gloo"), "devices": 2}


def loader(*tensors: Tensor, batch_size: int = 32, **options: Any) -> DataLoader[Any]:
    """Batches in an order that is drawn."""
    return DataLoader(TensorDataset(*tensors), batch_size, shuffle=True, drop_last=True, **options)


def digits(image: bool = False, batch_size: int = 48) -> dict[str, Any]:
    """The digits of scikit-learn, as ``Trainer.fit`` takes them."""
    x, y, v, w = data.images() if image else data.digits()
    return {
        "train_dataloaders": loader((x - 0.3) / 0.37, y, batch_size=batch_size),
        "val_dataloaders": DataLoader(TensorDataset((v - 0.3) / 0.37, w), 180),
    }


def diabetes() -> dict[str, Any]:
    """A regression whose targets have the shape ``(n,)``."""
    x, y, _, _ = data.diabetes()
    return {"train_dataloaders": loader(x, y.squeeze(1), batch_size=16)}


class Digits(Recipe):
    """A net that classifies, with validation."""

    def __init__(self, net: nn.Module, optimizers: Callable[[Any], Any] | None = None, loss: Any = None) -> None:
        super().__init__(net, loss or classify, optimizers or adam())

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(-1) == batch[1]).float().mean(), sync_dist=True)


class ByHand(LightningModule):
    """Manual optimisation with one optimizer."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.automatic_optimization = False
        self.losses: list[Tensor] = []

    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch, which is noted."""
        loss = classify(self.net, batch)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def classify(net: Any, batch: Any) -> Tensor:
    """Cross entropy of a net's logits."""
    return F.cross_entropy(net(batch[0]), batch[1])


def adam(lr: float = 2e-3) -> Callable[[Any], Any]:
    """Adam on all parameters of a module."""
    return lambda module: torch.optim.Adam(module.parameters(), lr=lr)


def sgd(lr: float = 0.05, momentum: float = 0.9) -> Callable[[Any], Any]:
    """Stochastic gradient descent on all parameters of a module."""
    return lambda module: torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)


def mlp(out: int = 10, fan_in: int = 64, width: int = 64) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(fan_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, out))


class Cnn(nn.Module):
    """A body of two convolutions with batch norm, and a head: ``body``, ``head``."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        )
        self.head = nn.Linear(16 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Encoder(nn.Module):
    """A transformer over the rows of a digit; its attention drops in training, or ``always``."""

    def __init__(self, width: int = 32, layers: int = 2, dropout: float = 0.1, always: bool = False) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.ModuleList(EncoderBlock(width, dropout, always) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x.view(-1, 8, 8)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


class EncoderBlock(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, dropout: float, always: bool) -> None:
        super().__init__()
        self.dropout, self.always = dropout, always
        self.norm0, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm0(x)).chunk(3, -1))
        drops = self.dropout if self.training or self.always else 0.0
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, dropout_p=drops).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm1(x))))
