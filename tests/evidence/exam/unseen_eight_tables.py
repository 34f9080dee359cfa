"""Healthy trainings on tables: masks that choose columns, sums of curves, rare kinds, ranks, scalars, and no gradient at all."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import in_batches

WELL = Expected()


def scaled(values: Tensor) -> Tensor:
    """Columns of mean 0 and deviation 1."""
    return (values - values.mean(0)) / values.std(0)


@functools.cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """One of scikit-learn's tables: its columns, standardised, and kinds as numbers, or a standardised target."""
    x, y = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    target = torch.tensor(y)
    return scaled(torch.tensor(x, dtype=torch.float32)), scaled(target.float()) if target.is_floating_point() else target


def mlp(*sizes: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers, with an activation between any two."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def adam(rate: float = 1e-3, **options: Any) -> Callable[[Any], Any]:
    """Adam over all parameters."""
    return lambda module: torch.optim.Adam(module.parameters(), rate, **options)


def sgd(rate: float, momentum: float = 0.9, **options: Any) -> Callable[[Any], Any]:
    """SGD over all parameters."""
    return lambda module: torch.optim.SGD(module.parameters(), rate, momentum, **options)


def sparsemax(scores: Tensor) -> Tensor:
    """Shares that add up to one, of which many are exactly 0."""
    ordered = scores.sort(-1, descending=True).values
    totals = ordered.cumsum(-1)
    count = (1 + torch.arange(1, scores.shape[-1] + 1) * ordered > totals).sum(-1, keepdim=True)
    return (scores - (totals.gather(-1, count - 1) - 1) / count).clamp_min(0)


class Gated(nn.Module):
    """A linear layer, batch norm and a gated linear unit."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(before, 2 * after, bias=False), nn.BatchNorm1d(2 * after, momentum=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return F.glu(self.norm(self.linear(x)))


class ChoosesColumns(nn.Module):
    """TabNet: at each of three steps a sparse mask says which columns are looked at."""

    def __init__(self, columns: int, kinds: int, width: int = 16) -> None:
        super().__init__()
        self.width, self.norm, self.shared = width, nn.BatchNorm1d(columns), Gated(columns, 2 * width)
        self.first = Gated(2 * width, 2 * width)
        self.own = nn.ModuleList(Gated(2 * width, 2 * width) for _ in range(3))
        self.masks = nn.ModuleList(nn.Sequential(nn.Linear(width, columns, bias=False), nn.BatchNorm1d(columns)) for _ in range(3))
        self.head = nn.Linear(width, kinds, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(x)
        attended = self.first(self.shared(x))[:, self.width :]
        prior, out, entropy = torch.ones_like(x), x.new_zeros(len(x), self.width), x.new_zeros(())
        for mask_of, own in zip(self.masks, self.own, strict=True):
            mask = sparsemax(mask_of(attended) * prior)
            prior = prior * (1.3 - mask)
            entropy = entropy - (mask * (mask + 1e-15).log()).sum(1).mean() / 3
            seen = self.shared(mask * x)
            both = (seen + own(seen)) * math.sqrt(0.5)
            out, attended = out + both[:, : self.width].relu(), both[:, self.width :]
        return self.head(out), entropy


@healthy("torch", "TabNet: sparse masks choose columns step by step for tumours, Adam at 0.02 that falls a little each epoch")
def tumours_by_chosen_columns() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told, entropy = net(batch[0])
        return F.cross_entropy(told, batch[1]) + 1e-3 * entropy

    def falling(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 0.02)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.95)]

    module = Recipe(ChoosesColumns(30, 2), loss, falling)
    return Built(module, in_batches(64, *table("breast_cancer")), {"max_epochs": 25}, WELL)


class Additive(nn.Module):
    """A curve for each column, by a small net of its own; the answer is their sum, and whole curves are dropped at times."""

    def __init__(self, columns: int, width: int = 24) -> None:
        super().__init__()
        self.first, self.places = nn.Parameter(torch.randn(columns, width)), nn.Parameter(torch.rand(columns, width))
        self.second = nn.Parameter(torch.randn(columns, width, width) * (2 / width) ** 0.5)
        self.last, self.bias = nn.Parameter(torch.randn(columns, width) * width**-0.5), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = ((x[:, :, None] - self.places) * self.first).relu()
        hidden = F.dropout(torch.einsum("bcw,cwv->bcv", hidden, self.second).relu(), 0.1, self.training)
        parts = (hidden * self.last).sum(-1)
        return F.dropout1d(parts[..., None], 0.05, self.training).sum((1, 2)) + self.bias, parts


@healthy(
    "torch", "a neural additive model of Friedman's function: a net for each column, whole columns drop out, a penalty on curves"
)
def friedman_by_sums_of_curves() -> Built:
    x, y = sklearn.datasets.make_friedman1(1000, noise=0.5, random_state=0)

    def loss(net: Any, batch: Any) -> Tensor:
        told, parts = net(batch[0])
        return F.mse_loss(told, batch[1]) + 1e-3 * parts.square().mean()

    def falling(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 0.01)
        return [chosen], [torch.optim.lr_scheduler.ExponentialLR(chosen, 0.95)]

    columns, target = torch.tensor(x, dtype=torch.float32), scaled(torch.tensor(y, dtype=torch.float32))
    module = Recipe(Additive(10), loss, falling)
    return Built(module, in_batches(64, columns, target), {"max_epochs": 18}, WELL)


@healthy(
    "torch", "fraud, two in a hundred: a weight of 49 for what is rare, so that one case makes the loss leap; AdamW, batch norm"
)
def fraud_in_two_of_a_hundred() -> Built:
    x, y = sklearn.datasets.make_classification(6000, 20, n_informative=8, weights=[0.98], flip_y=0.0, random_state=3)
    net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU())
    net.append(nn.Linear(32, 1))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0])[:, 0], batch[1], pos_weight=torch.tensor(49.0))

    module = Recipe(net, loss, lambda module: torch.optim.AdamW(module.parameters(), 2e-3))
    data = in_batches(128, torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32))
    return Built(module, data, {"max_epochs": 6}, WELL)


def lambda_rank(net: Any, batch: Any) -> Tensor:
    """Pairs of documents of a query, each by how much the gain of the ranking would change if they changed places."""
    scores, relevance = net(batch[0])[..., 0], batch[1].float()
    gains = 2**relevance - 1
    places = scores.argsort(1, descending=True).argsort(1).float()
    discounts = 1 / (places + 2).log2()
    best = (gains.sort(1, descending=True).values / (torch.arange(scores.shape[1]) + 2.0).log2()).sum(1).clamp_min(1.0)
    change = (gains[:, :, None] - gains[:, None]) * (discounts[:, :, None] - discounts[:, None])
    better = relevance[:, :, None] > relevance[:, None]
    pairs = F.softplus(scores[:, None] - scores[:, :, None]) * change.detach().abs() / best[:, None, None]
    return (pairs * better).sum((1, 2)).mean()


@healthy(
    "torch", "LambdaRank: twelve documents a query, pairs are weighed by the change of the gain, no level of the scores is right"
)
def documents_ranked() -> Built:
    generator = torch.Generator().manual_seed(0)
    documents = torch.randn(600, 12, 10, generator=generator)
    merit = documents[..., 0] + documents[..., 1] * documents[..., 2] + 0.3 * torch.randn(600, 12, generator=generator)
    relevance = (merit.argsort(1).argsort(1) // 2 - 1).clamp_min(0)
    module = Recipe(mlp(10, 64, 32, 1), lambda_rank, adam(3e-3))
    return Built(module, in_batches(24, documents, relevance), {"max_epochs": 12}, WELL)


class Epidemic(nn.Module):
    """How many are ill from day to day; all that is learned are three numbers."""

    def __init__(self, infects: float, recovers: float, first: float) -> None:
        super().__init__()
        self.infects, self.recovers = nn.Parameter(torch.tensor(infects).log()), nn.Parameter(torch.tensor(recovers).log())
        self.first = nn.Parameter(torch.tensor(first).logit())

    def forward(self, days: int) -> Tensor:
        ill = self.first.sigmoid()
        well, course = 1 - ill, []
        for _ in range(days):
            new, over = self.infects.exp() * well * ill, self.recovers.exp() * ill
            well, ill = well - new, ill + new - over
            course.append(ill)
        return torch.stack(course)


@healthy("torch", "an epidemic's two rates and its beginning, three numbers in all, through forty steps of Euler, Adam at 0.03")
def epidemic_of_three_numbers() -> Built:
    with torch.no_grad():
        course = Epidemic(0.5, 0.15, 0.01)(40)
    seen = course.log() + 0.2 * torch.randn(320, 40, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(40).log().expand_as(batch[0]), batch[0])

    module = Recipe(Epidemic(0.25, 0.05, 0.002), loss, adam(0.03))
    return Built(module, in_batches(16, seen), {"max_epochs": 10}, WELL)


@healthy("torch", "kinds of wine by Rprop: all rows in each step, only signs of gradients count, labels are smoothed")
def wine_by_signs() -> Built:
    module = Recipe(
        mlp(13, 16, 3, activation=nn.Tanh),
        lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], label_smoothing=0.1),
        lambda module: torch.optim.Rprop(module.parameters(), 0.001, step_sizes=(1e-6, 0.02)),
    )
    return Built(module, in_batches(178, *table("wine")), {"max_epochs": 160}, WELL)


class Towers(nn.Module):
    """Shoppers and things, each by an embedding and a net, on the unit sphere."""

    def __init__(self, shoppers: int, things: int) -> None:
        super().__init__()
        self.shopper = nn.Sequential(nn.Embedding(shoppers, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.thing = nn.Sequential(nn.Embedding(things, 16), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, shoppers: Tensor, things: Tensor) -> Tensor:
        return F.normalize(self.shopper(shoppers), dim=-1) @ F.normalize(self.thing(things), dim=-1).T / 0.1


@healthy(
    "torch", "two towers: what others in the batch have bought is what one has not, less the logarithm of how often it is sold"
)
def shoppers_and_things() -> Built:
    generator = torch.Generator().manual_seed(0)
    tastes, kinds = torch.randn(150, 4, generator=generator), torch.randn(80, 4, generator=generator)
    popularity = torch.randn(80, generator=generator)
    chances = (2 * tastes @ kinds.T + popularity).softmax(1)
    bought = torch.multinomial(chances, 60, replacement=True, generator=generator)
    shares = (bought.flatten().bincount(minlength=80) + 1.0).log() - math.log(bought.numel())

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(*batch) - shares[batch[1]]
        same = batch[1][:, None] == batch[1]
        return F.cross_entropy(told.masked_fill(same & ~torch.eye(len(same), dtype=torch.bool), -1e4), torch.arange(len(told)))

    module = Recipe(Towers(150, 80), loss, adam(5e-3))
    data = in_batches(64, torch.arange(150).repeat_interleave(60), bought.flatten())
    return Built(module, data, {"max_epochs": 2}, WELL)


class Evolves(Recipe):
    """No gradient is computed: weights are shaken to both sides, and what made the loss smaller tells the direction."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    @torch.no_grad()
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        weights = dict(self.net.named_parameters())
        slopes = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for _ in range(16):
            shake = {name: 0.05 * torch.randn_like(weight) for name, weight in weights.items()}
            sides = [
                F.cross_entropy(functional_call(self.net, {n: w + sign * shake[n] for n, w in weights.items()}, batch[0]), batch[1])
                for sign in (1, -1)
            ]
            for name, slope in slopes.items():
                slope += (sides[0] - sides[1]) * shake[name] / (2 * 16 * 0.05**2)
        for name, weight in weights.items():
            weight.grad = slopes[name]
        chosen.step()
        return {"loss": F.cross_entropy(self.net(batch[0]), batch[1])}


@healthy("torch", "kinds of iris by evolution strategies: gradients are estimated from shaken weights and put in by hand, Adam")
def iris_by_evolution() -> Built:
    module = Evolves(mlp(4, 10, 3, activation=nn.Tanh), None, adam(0.03))
    return Built(module, in_batches(50, *table("iris")), {"max_epochs": 60}, WELL)
