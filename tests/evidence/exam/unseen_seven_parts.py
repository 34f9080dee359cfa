"""What several families of this set share: tables, blocks, optimizers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from lightning.pytorch import LightningModule
from sklearn import datasets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam.cases import Recipe
from tests.evidence.exam.texts import batches

Optimizers = Callable[[LightningModule], Any]
NOTHING_LEARNED = ("no_progress", "loss_plateau", "part_not_learning", "silent", "step_too_short", "step_too_long")
TOO_MUCH = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "loss_spike", "spike", "update_spike", "dead")
BROKEN = ("nonfinite", "loss_nonfinite")
TOO_LITTLE = ("update_too_small", "not_updated", "lr_zero", "updates_lost", "optimizer_settings", "step_too_short")


def adam(rate: float, **options: Any) -> Optimizers:
    """Adam over all parameters."""
    return lambda module: torch.optim.Adam(module.parameters(), rate, **options)


def sgd(rate: float, momentum: float = 0.9, **options: Any) -> Optimizers:
    """SGD with momentum over all parameters."""
    return lambda module: torch.optim.SGD(module.parameters(), rate, momentum, **options)


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), act()]
    return nn.Sequential(*layers[:-1])


@functools.cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """Standardised columns of one of scikit-learn's tables, and its target: classes as integers, numbers standardised."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    columns = torch.tensor(x, dtype=torch.float32)
    columns = (columns - columns.mean(0)) / columns.std(0).clamp_min(1e-6)
    if name == "diabetes":
        target = torch.tensor(y, dtype=torch.float32)
        return columns, (target - target.mean()) / target.std()
    return columns, torch.tensor(y).long()


@functools.cache
def friedman(number: int = 2000) -> tuple[Tensor, Tensor]:
    """Friedman's first function of five of ten columns from -1 to 1, standardised."""
    x, y = datasets.make_friedman1(number, noise=0.5, random_state=0)
    target = torch.tensor(y, dtype=torch.float32)
    return torch.tensor(2 * x - 1, dtype=torch.float32), (target - target.mean()) / target.std()


def halves(batch_size: int, *tensors: Tensor, share: float = 0.8) -> dict[str, Any]:
    """Rows for training, and the others for validation."""
    order = torch.randperm(len(tensors[0]), generator=torch.Generator().manual_seed(1))
    cut = int(share * len(order))
    first, second = ([tensor[part] for tensor in tensors] for part in (order[:cut], order[cut:]))
    return {**batches(batch_size, *first), "val_dataloaders": DataLoader(TensorDataset(*second), 256)}


class Scored(Recipe):
    """Logs the loss of what is held back."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss_of_batch(self.net, batch))


class ByHand(Recipe):
    """One optimizer, stepped by hand."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        self.before_step(batch)
        chosen.step()
        return {"loss": loss.detach()}

    def before_step(self, batch: Any) -> None:
        """What is done to the gradients."""


def to_classes(net: Any, batch: Any) -> Tensor:
    """The loss of a class."""
    return F.cross_entropy(net(batch[0]), batch[1])


def to_numbers(net: Any, batch: Any) -> Tensor:
    """The squared error of one number a sample."""
    return F.mse_loss(net(batch[0]).squeeze(-1), batch[1])


def small_cnn(width: int = 16, outputs: int = 10, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Three convolutions with batch norm over pictures of 16 x 16, then a mean and a linear layer."""
    layers: list[nn.Module] = []
    for before, after, stride in ((1, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), act()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, outputs))


class Writer(nn.Module):
    """A transformer of PyTorch's layers that writes the next character."""

    def __init__(self, tokens: int, width: int = 48, depth: int = 2, longest: int = 64, **options: Any) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Parameter(0.02 * torch.randn(longest, width))
        settings = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True, **options}
        layers = [nn.TransformerEncoderLayer(width, 4, 2 * width, **settings) for _ in range(depth)]
        self.layers, self.norm, self.head = nn.ModuleList(layers), nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        hidden = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=hidden, is_causal=True)
        return self.head(self.norm(x))


def next_character(net: Any, batch: Any) -> Tensor:
    """The loss of each next token."""
    return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())
