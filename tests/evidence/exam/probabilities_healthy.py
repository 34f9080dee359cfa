"""Nets whose answer is a distribution: evidence, weights with widths, Gaussian processes, mixtures, survival."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adam
from tests.evidence.exam.small_nets import by_recipe
from tests.evidence.exam.tables import table


@healthy(
    "torch", "DeepSurv: Cox's partial likelihood of who is ill for how long, half of them censored, SELU and Nesterov momentum"
)
def recipe_survival() -> Built:
    x = torch.tensor(load_breast_cancer().data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    generator = torch.Generator().manual_seed(0)
    risk = x[:, 0] + 0.5 * x[:, 1] * x[:, 4]
    times = -torch.rand(len(x), generator=generator).log() * (-risk).exp()
    ends = -torch.rand(len(x), generator=generator).log()
    net = nn.Sequential(nn.Linear(30, 32), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(32, 32), nn.SELU(), nn.Linear(32, 1))

    def loss(net: Any, batch: Any) -> Tensor:
        order = batch[1].argsort(descending=True)
        score, seen = net(batch[0][order]).squeeze(1), batch[2][order]
        return -((score - score.logcumsumexp(0)) * seen).sum() / seen.sum()

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)  # noqa: E731
    return by_recipe(net, loss, sgd, in_batches(128, x, torch.minimum(times, ends), (times <= ends).float()), max_epochs=20)


class Induced(nn.Module):
    """A sparse variational Gaussian process: what is known at twenty places, with its spread, and all else between them."""

    def __init__(self, many: int = 20) -> None:
        super().__init__()
        self.places, self.mean = nn.Parameter(torch.linspace(-2.8, 2.8, many)[:, None]), nn.Parameter(torch.zeros(many))
        self.root, self.log_length = nn.Parameter(torch.eye(many)), nn.Parameter(torch.zeros(()))
        self.log_scale, self.log_noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-1.0))

    def near(self, first: Tensor, second: Tensor) -> Tensor:
        away = (first - second.T) / self.log_length.exp()
        return (2 * self.log_scale - 0.5 * away.square()).exp()

    def forward(self, x: Tensor, y: Tensor, many: int) -> Tensor:
        """Minus the bound of the evidence, per sample."""
        base = torch.linalg.cholesky(self.near(self.places, self.places) + 1e-5 * torch.eye(len(self.mean), dtype=x.dtype))
        shares, root = torch.linalg.solve_triangular(base, self.near(self.places, x), upper=False), self.root.tril()
        told = shares.T @ self.mean
        spread = (2 * self.log_scale).exp() - shares.square().sum(0) + (root.T @ shares).square().sum(0)
        wrong = ((y - told).square() + spread) / (2 * self.log_noise).exp()
        fits = -0.5 * wrong - self.log_noise - 0.5 * math.log(2 * math.pi)
        away = 0.5 * (root.square().sum() + self.mean.square().sum() - len(self.mean)) - root.diagonal().abs().log().sum()
        return -fits.mean() + away / many


@healthy(
    "torch",
    "a sparse variational Gaussian process: twenty places that move, one bound for all, in double precision; Adam",
    learned_from=False,
)
def waves_by_inducing_points() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(3200, 1, generator=generator, dtype=torch.float64) - 3
    y = (3 * x).sin()[:, 0] + 0.5 * x[:, 0].cos() + 0.1 * torch.randn(3200, generator=generator, dtype=torch.float64)

    def loss(net: Any, batch: Any) -> Tensor:
        return net(*batch, 3200)

    options = {"max_epochs": 4, "precision": "64-true"}
    return Built(Recipe(Induced().double(), loss, adam(0.03)), in_batches(50, x, y), options, WELL)


class Doubtful(nn.Module):
    """A linear layer whose weights are drawn anew for each batch."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.randn(after, before) / math.sqrt(before))
        self.width = nn.Parameter(torch.full((after, before), -4.0))
        self.bias = nn.Parameter(torch.zeros(after))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mean + F.softplus(self.width) * torch.randn_like(self.mean), self.bias)

    def excess(self) -> Tensor:
        """The divergence from a Gaussian of deviation 0.3."""
        deviation = F.softplus(self.width)
        return (math.log(0.3) - deviation.log() + (deviation**2 + self.mean**2) / 0.18 - 0.5).sum()


@healthy("torch", "kinds of wine by Bayes by backprop: weights have means and widths, their divergence is a share of the loss")
def wine_bayes_by_backprop() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1]) + 1e-3 * (net[0].excess() + net[2].excess())

    net = nn.Sequential(Doubtful(13, 24), nn.ReLU(), Doubtful(24, 3))
    return Built(Recipe(net, loss, adam(5e-3)), in_batches(16, *table("wine")), {"max_epochs": 25}, Expected())
