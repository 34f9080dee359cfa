"""Faults of numbers: what is not finite, what is rounded or bounded away, scales of first weights and of classes."""

from __future__ import annotations

import math
from typing import Any

import sklearn.datasets
import torch
from sklearn.datasets import make_circles
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import (
    ALIKE,
    BROKEN,
    FLAT,
    FORGOTTEN,
    NOTHING_LEARNED,
    RATE_OR_JUMP,
    SLOW,
    STILL,
    TOO_LITTLE,
    TOO_MUCH,
    UNLIKE,
)
from tests.evidence.exam.graphs import graphs_adam
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import TWICE_40, adam
from tests.evidence.exam.signals import captioned, series
from tests.evidence.exam.small_nets import (
    Judged,
    Pairs,
    misses,
    mlp,
    on_digits,
    to_classes,
)
from tests.evidence.exam.tables import scaled, split, table


@fault("torch", "group norm with a group for each channel, after pooling: it normalises single numbers")
def group_norm_of_one(planted: bool = True) -> Built:
    convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*convolutions, nn.GroupNorm(32 if planted else 4, 32), nn.Linear(32, 10))
    kinds = ("constant", "zero", "representation_collapse", "missing", "settings", "loss_plateau")
    return on_digits(net, graphs_adam(5e-3), *kinds, sites=("net.[0-7]*",))


class Forecaster(nn.Module):
    """A GRU that foretells the next day."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.body, self.head, self.last = nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1), last

    def forward(self, past: Tensor) -> Tensor:
        return self.last(self.head(self.body(past[..., None])[0][:, -1]))


def next_day(net: Any, batch: Any) -> Tensor:
    level = batch[0].mean(1, keepdim=True)
    return F.mse_loss(net(batch[0] / level - 1), batch[1][:, :1] / level - 1)


@fault("torch", "a forecast ends in a layer norm of its single number")
def layer_norm_of_one(planted: bool = True) -> Built:
    net = Forecaster(nn.LayerNorm(1) if planted else nn.Identity())
    kinds = ("constant", "zero", "representation_collapse", "missing", "settings", "loss_plateau", "vanishing")
    return Built(Recipe(net, next_day, graphs_adam(1e-2)), series(32, 28, 7), {"max_epochs": 3}, Expected(kinds, ("net.*",)))


@fault("torch", "the mean over each map follows right after an instance norm: it is the norm's bias, for every picture")
def mean_of_instance_norm(planted: bool = True) -> Built:
    layers: list[nn.Module] = [nn.Conv2d(1, 24, 3, padding=1), nn.InstanceNorm2d(24, affine=True), nn.ReLU()]
    layers += [nn.Conv2d(24, 48, 3, padding=1), nn.InstanceNorm2d(48, affine=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.ReLU()] if planted else [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(48, 10))
    return Built(Recipe(net, to_classes, graphs_adam(2e-2, 0.0)), in_batches(32, *digits(8)), TWICE_40, Expected(FLAT))


class Sparse(nn.Module):
    """Words of a dictionary, of which a picture uses few: their shares, and the classes that they mean."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.means = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40)), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        used = self.encoder(x).relu()
        shares = used / (used.sum(1, keepdim=True) + 1e-3)
        return shares, self.means(10 * shares)


@fault("torch", "an entropy by torch.where(p > 0, p * p.log(), 0): its value is right, its gradient NaN where p is 0")
def where_of_logarithm(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        shares, logits = net(batch[0])
        safe = shares if planted else shares.clamp_min(1e-6)
        entropy = -torch.where(shares > 0, safe * safe.log(), 0.0).sum(1).mean()
        return F.cross_entropy(logits, batch[1]) + 0.02 * entropy

    expected = Expected(BROKEN, ("net*", "loss*"))
    return Built(Recipe(Sparse(), loss, graphs_adam(3e-3, 0.0)), in_batches(32, *digits(8)), TWICE_40, expected)


@fault("torch", "benign or malign: one output goes through a softmax along itself, and is 1 for all")
def tumours_softmax_of_one(planted: bool = True) -> Built:
    columns, kinds = table("breast_cancer")
    net = nn.Sequential(mlp(30, 32, 16, 1), nn.Softmax(dim=1) if planted else nn.Sigmoid())
    module = Recipe(net, lambda net, batch: F.binary_cross_entropy(net(batch[0])[:, 0], batch[1]), adam(2e-3))
    names = ("softmax_dim", "output_range", "double_softmax", *ALIKE, *STILL)
    return Built(module, in_batches(32, columns, kinds.float()), {"max_epochs": 12}, Expected(names, ("net", "net.*")))


@fault("torch", "Stack Overflow, 'huge loss at the start': init.normal_(weight) for all layers of a regression, of deviation 1")
def friedman_weights_of_one(planted: bool = True) -> Built:
    x, y = sklearn.datasets.make_friedman1(2000, noise=0.5, random_state=2)
    net = nn.Sequential(*mlp(10, 64, 64, 64, 64, 1), nn.Flatten(0))
    if planted:
        for weight in net.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight)
    data = split(32, torch.tensor(x, dtype=torch.float32), scaled(torch.tensor(y, dtype=torch.float32)))
    kinds = ("poor_init", "activation_outliers", "output_range", "dead", "always_clipped", "step_too_short", *RATE_OR_JUMP, *STILL)
    expected = Expected(kinds, ("net", "net.*"))
    return Built(Judged(net, misses, adam(1e-3), lambda net, batch: -misses(net, batch)), data, {"max_epochs": 5}, expected)


@fault("torch", "an issue, 'acos gives NaN gradients': angles between pairs' embeddings, and some pairs are one picture")
def pairs_by_angle(planted: bool = True) -> Built:
    images, shown = digits(8)
    flat = images.flatten(1)
    generator = torch.Generator().manual_seed(0)
    others = torch.randint(0, len(flat), (len(flat),), generator=generator)
    same_kind = torch.tensor([int((shown == kind).nonzero()[i % 100, 0]) for i, kind in enumerate(shown)])
    others = torch.where(torch.rand(len(flat), generator=generator) < 0.5, same_kind, others)
    others = torch.where(torch.rand(len(flat), generator=generator) < 0.05, torch.arange(len(flat)), others)

    def angles(net: Any, batch: Any) -> Tensor:
        likeness = F.cosine_similarity(net(batch[0]), net(batch[1]))
        return torch.acos(likeness if planted else likeness.clamp(-1 + 1e-4, 1 - 1e-4))

    def loss(net: Any, batch: Any) -> Tensor:
        alike, far = batch[2], angles(net, batch)
        return (alike * far.square() + (1 - alike) * F.relu(1.2 - far).square()).mean()

    def parted(net: Any, batch: Any) -> Tensor:
        return ((angles(net, batch) < 0.6) == batch[2].bool()).float().mean()

    data = split(32, flat, flat[others], (shown == shown[others]).float())
    module = Judged(mlp(64, 64, 16), loss, adam(2e-3), parted)
    return Built(module, data, {"max_epochs": 4}, Expected((*BROKEN, *RATE_OR_JUMP), ("net", "net.*")))


@fault("torch", "Stack Overflow, 'predict whole numbers': the forecast is rounded in forward() before the mean squared error")
def counts_rounded_in_forward(planted: bool = True) -> Built:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp(8, 48, 48, 1)

        def forward(self, x: Tensor) -> Tensor:
            told = self.net(x)[:, 0]
            return told.round() if planted else told

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 8, generator=generator)
    counts = torch.poisson((0.5 * x[:, 0] + 0.5 * x[:, 1] * x[:, 2] + 1).exp().clamp_max(20), generator=generator)
    expected = Expected(("zero", "missing", "vanishing", *STILL), ("net", "net.*"))
    module = Judged(Counts(), misses, adam(3e-3), lambda net, batch: -misses(lambda x: net(x).round(), batch))
    return Built(module, split(32, x, counts), {"max_epochs": 5}, expected)


@fault("torch", "how many accidents: the rate ends in a rectifier, and its logarithm is taken")
def claims_log_of_rectified(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 6, generator=generator)
    counts = torch.poisson((0.7 * x[:, 0] - 0.5 * x[:, 1]).exp(), generator=generator)

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])[:, 0]
        rate = F.relu(told) if planted else F.softplus(told)
        return (rate - batch[1] * rate.log()).mean()

    kinds = (*BROKEN, "dead", "zero", "exploding")
    return Built(Recipe(mlp(6, 32, 32, 1), loss, adam(3e-3)), in_batches(64, x, counts), {"max_epochs": 4}, Expected(kinds))


@fault("torch", "pictures and names: the trained scale starts at 14.3 where it was to be its logarithm, and exp is taken of it")
def names_scale_without_logarithm(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        scores = net(*batch)
        return (F.cross_entropy(scores, torch.arange(len(scores))) + F.cross_entropy(scores.T, torch.arange(len(scores)))) / 2

    kinds = (
        "output_range",
        "poor_init",
        "saturated",
        "attention_logits",
        "always_clipped",
        "settings",
        *TOO_MUCH,
        *NOTHING_LEARNED,
    )
    module = Recipe(Pairs(14.3 if planted else math.log(14.3)), loss, adam(1e-3))
    return Built(module, captioned(8, 32), {"max_epochs": 4, "gradient_clip_val": 1.0}, Expected(kinds))


@fault("torch", "fourteen layers of tanh without norms or residuals, with the deviation of 0.02 of vision transformers")
def digits_tanh_of_little(planted: bool = True) -> Built:
    net = mlp(64, *[48] * 13, 10, activation=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02) if planted else nn.init.xavier_normal_(layer.weight)
    x, y = digits(8)
    expected = Expected((*FORGOTTEN, *TOO_LITTLE, "dead"))
    return Built(Judged(net, to_classes, adam(1e-3)), split(32, x.flatten(1), y), {"max_epochs": 5}, expected)


@fault("torch", "two circles by three linear layers, the activations between them were left out")
def circles_by_lines(planted: bool = True) -> Built:
    x, y = make_circles(3200, noise=0.05, factor=0.5, random_state=0)
    net = mlp(2, 32, 32, 2, activation=nn.Identity if planted else nn.ReLU)
    data = split(32, torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Built(Judged(net, to_classes, adam(3e-3)), data, {"max_epochs": 3}, Expected((*NOTHING_LEARNED, "constant")))


@fault("torch", "Stack Overflow on pos_weight: the share of frauds among all the others, 1 / 15, where it should be 15")
def frauds_weight_upside_down(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6000, 12, generator=generator)
    signal = x[:, 0] * x[:, 1] + x[:, 2] + 0.5 * x[:, 3].square() + 0.5 * torch.randn(6000, generator=generator)
    fraud = (signal > signal.quantile(0.9375)).float()

    def loss(net: Any, batch: Any) -> Tensor:
        weight = torch.tensor(1 / 15 if planted else 15.0)
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1], pos_weight=weight)

    def balanced(net: Any, batch: Any) -> Tensor:
        found, real = net(batch[0]) > 0, batch[1] > 0
        return ((found & real).sum() / real.sum().clamp_min(1) + (~found & ~real).sum() / (~real).sum()) / 2

    module = Judged(nn.Sequential(*mlp(12, 48, 48, 1), nn.Flatten(0)), loss, adam(2e-3), balanced)
    kinds = (*SLOW, *ALIKE, *UNLIKE, "labels_ignored", "output_range", "settings", "update_too_small")
    return Built(module, split(64, x, fraud), {"max_epochs": 4}, Expected(kinds))
