"""Nets of PyTorch's layers, recipes and losses that several families share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import TWICE_40
from tests.evidence.exam.texts import VOCABULARY


def learn(net: nn.Module, loss: Any, data: dict[str, Any], steps: int, rate: float = 3e-3) -> None:
    """What was learnt before: a net as it would be downloaded, after a short training of its own."""
    chosen = torch.optim.AdamW(net.parameters(), rate)
    for _, batch in zip(range(steps), itertools.chain.from_iterable(itertools.repeat(data["train_dataloaders"])), strict=False):
        chosen.zero_grad()
        loss(net, batch).backward()
        chosen.step()
    net.zero_grad(set_to_none=True)


def on_digits(net: nn.Module, rates: Any, *kinds: str, sites: tuple[str, ...] | None = None, width: int = 8) -> Built:
    """Trained on pictures of digits."""
    return Built(Recipe(net, to_classes, rates), in_batches(32, *digits(width)), TWICE_40, Expected(kinds, sites))


def by_recipe(net: nn.Module, loss: Any, optimizers: Any, data: dict[str, Any], **kwargs: Any) -> Built:
    return Built(Recipe(net, loss, optimizers), data, {**TWICE_40, **kwargs}, Expected())


def block(fan_in: int, fan_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU())


class Coupling(nn.Module):
    """One half is scaled and shifted by what the other half says."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask: Tensor
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.net(x * self.mask).chunk(2, 1)
        scale = scale.tanh() * (1 - self.mask)
        return x * scale.exp() + shift * (1 - self.mask), scale.sum(1)


def flow_loss(net: Any, batch: Any, with_volume: bool = True) -> Tensor:
    """Of points under couplings: how far they are from the middle of a normal distribution, and how much room they were given."""
    x, volume = batch[0], torch.zeros(len(batch[0]))
    for layer in net:
        x, change = layer(x)
        volume = volume + change
    return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - (volume if with_volume else 0)).mean()


class Judged(Recipe):
    """Logs a score of validation batches."""

    def __init__(self, net: nn.Module, loss: Any, optimizers: Any, score: Callable[[Any, Any], Tensor] | None = None) -> None:
        super().__init__(net, loss, optimizers)
        self.score = score

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss_of_batch(self.net, batch))
        if self.score is not None:
            self.log("val_score", self.score(self.net, batch))


def convolutions() -> nn.Sequential:
    """Two convolutions with batch norm and a hidden layer, for digits of 16 pixels."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32))
    return net.extend([nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()])


def misses(net: Any, batch: Any) -> Tensor:
    return F.mse_loss(net(batch[0]), batch[1])


class Strip(nn.Module):
    """Convolutions over the columns of a line, a GRU to both sides, and a kind for each second column; 0 is the blank."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Sequential(nn.Conv1d(8, 48, 5, padding=2), nn.BatchNorm1d(48), nn.ReLU(), nn.Conv1d(48, 48, 4, 2, 1))
        self.columns.extend([nn.BatchNorm1d(48), nn.ReLU()])
        self.body, self.head = nn.GRU(48, 32, batch_first=True, bidirectional=True), nn.Linear(64, 11)

    def forward(self, lines: Tensor) -> Tensor:
        return self.head(self.body(self.columns(lines).transpose(1, 2))[0]).log_softmax(-1)


def connectionist(net: Any, batch: Any) -> Tensor:
    told = net(batch[0]).transpose(0, 1)
    many = len(batch[0])
    return F.ctc_loss(told, batch[1], torch.full((many,), len(told)), torch.full((many,), batch[1].shape[1]), zero_infinity=True)


def right(net: Any, batch: Any) -> Tensor:
    """How many are told right."""
    return (net(batch[0]).argmax(-1) == batch[1]).float().mean()


def taught(net: nn.Module, x: Tensor, y: Tensor, steps: int = 200, rate: float = 3e-3) -> nn.Module:
    """A net that has learned these rows."""
    chosen = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        chosen.zero_grad()
        with torch.enable_grad():
            F.cross_entropy(net(x[rows]), y[rows]).backward()
        chosen.step()
    return net


class Pairs(nn.Module):
    """Digits and their names in one space, with a trained scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.sees, self.tokens = mlp(192, 64, 24), nn.Embedding(VOCABULARY, 16)
        self.reads, self.scale = nn.Linear(16 * 12, 24), nn.Parameter(torch.tensor(scale))

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        seen, read = self.sees(images.flatten(1)), self.reads(self.tokens(ids).flatten(1))
        return self.scale.exp() * F.normalize(seen, dim=1) @ F.normalize(read, dim=1).T


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def to_classes(net: Any, batch: Any) -> Tensor:
    """The loss of a class."""
    return F.cross_entropy(net(batch[0]), batch[1])


def to_numbers(net: Any, batch: Any) -> Tensor:
    """The squared error of one number a sample."""
    return F.mse_loss(net(batch[0]).squeeze(-1), batch[1])


def small_cnn(width: int = 16, outputs: int = 10, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Three convolutions with batch norm over pictures of 16 x 16, then a mean and a linear layer."""
    layers: list[nn.Module] = []
    for before, after, stride in ((1, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), activation()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, outputs))


def next_character(net: Any, batch: Any) -> Tensor:
    """The loss of each next token."""
    return F.cross_entropy(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())


class Splines(nn.Module):
    """A layer of a Kolmogorov-Arnold net: a curve of hats for each pair of an input and an output, beside a SiLU."""

    def __init__(self, before: int, after: int, reach: float = 2.0, knots: int = 9) -> None:
        super().__init__()
        self.register_buffer("knots", torch.linspace(-reach, reach, knots))
        self.reach = 2 * reach / (knots - 1)
        self.curves = nn.Parameter(0.1 * torch.randn(after, before * knots) / math.sqrt(before))
        self.base = nn.Linear(before, after)

    def forward(self, x: Tensor) -> Tensor:
        hats = F.relu(1 - (x[..., None] - self.knots).abs() / self.reach)
        return F.linear(hats.flatten(1), self.curves) + self.base(F.silu(x))
