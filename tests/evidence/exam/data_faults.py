"""Faults of data that nets of PyTorch's layers are given: samplers, numbers of classes, order, units."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import (
    ALIKE,
    BROKEN,
    FORGOTTEN,
    NOTHING_LEARNED,
    RATE_OR_JUMP,
    SETTING,
    STILL,
)
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, sgd
from tests.evidence.exam.signals import crops
from tests.evidence.exam.small_nets import Judged, misses, mlp, right, to_classes
from tests.evidence.exam.tables import scaled, split, table


@fault(
    "torch", "what is not known of a patient was filled in with -9999 after the columns were standardised, one value in a hundred"
)
def progress_unknown_is_minus_9999(planted: bool = True) -> Built:
    columns, progress = table("diabetes")
    unknown = torch.rand(columns.shape, generator=torch.Generator().manual_seed(0)) < 0.01
    columns = columns.masked_fill(unknown, -9999.0 if planted else 0.0)
    net = nn.Sequential(mlp(10, 32, 32, 1), nn.Flatten(0))
    kinds = (*RATE_OR_JUMP, *BROKEN, "activation_outliers", "dead", "settings", "poor_init")
    return Built(Recipe(net, misses, adam(2e-3)), in_batches(32, columns, progress), {"max_epochs": 14}, Expected(kinds))


class Homes(nn.Module):
    """The price of a home and whether it will be sold within a month, from one body."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.price, self.sold = nn.Sequential(mlp(10, 48, 48), nn.ReLU()), nn.Linear(48, 1), nn.Linear(48, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.body(x)
        return self.price(hidden)[:, 0], self.sold(hidden)[:, 0]


@fault("torch", "Stack Overflow on two heads: a price in dollars under a squared error is added to a binary cross-entropy")
def homes_in_dollars(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2400, 10, generator=generator)
    price = 3e5 + 1e5 * (x[:, 0] + 0.5 * x[:, 1] * x[:, 2])
    sold = ((x[:, 3] * x[:, 4] + 0.7 * x[:, 5] - 0.3 * x[:, 0]) > 0).float()

    def loss(net: Any, batch: Any) -> Tensor:
        told, chance = net(batch[0])
        return F.mse_loss(told, batch[1]) + F.binary_cross_entropy_with_logits(chance, batch[2])

    def found(net: Any, batch: Any) -> Tensor:
        return ((net(batch[0])[1] > 0) == batch[2].bool()).float().mean()

    kinds = ("part_not_learning", "output_range", "activation_outliers", "always_clipped", "poor_init", *RATE_OR_JUMP, *STILL)
    data = split(32, x, price if planted else scaled(price[:, None])[:, 0], sold)
    module = Judged(Homes(), loss, adam(3e-3), found)
    return Built(module, data, {"max_epochs": 6}, Expected(kinds))


class Places(nn.Module):
    """Sines of a place at doubling frequencies, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", math.pi * 2.0 ** torch.arange(6))
        self.layers = mlp(12, 64, 64, 3)

    def forward(self, places: Tensor) -> Tensor:
        return self.layers(torch.sin(places[..., None] * self.waves).flatten(1))


@fault("torch", "a photograph by its places: the sines get whole numbers of pixels, of which each is a multiple of their period")
def photograph_whole_places(planted: bool = True) -> Built:
    image = next(iter(crops(32, 1)["train_dataloaders"]))[0][0]
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    places = torch.stack((rows, columns), -1).view(-1, 2).float()
    data = in_batches(128, places if planted else places / 32, image.flatten(1).T.contiguous())
    module = Recipe(Places(), lambda net, batch: F.mse_loss(net(batch[0]), batch[1]), adam(3e-3))
    return Built(module, data, {"max_epochs": 30}, Expected(("dead", *FORGOTTEN)))


class Likeness(Judged):
    """Logs how much more alike two of one kind are than two of different kinds."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        places = F.normalize(self.net(batch[0]), dim=1)
        alike, same = places @ places.T, batch[1][:, None] == batch[1]
        self.log("margin", alike[same].mean() - alike[~same].mean())


@fault(
    "torch",
    "pairs of digits under cosine_embedding_loss, which wants labels of -1 and 1 and gets 0 and 1: nothing keeps kinds apart",
)
def digits_pairs_of_zeros(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        places, same = net(batch[0]), (batch[1] == batch[1].roll(1)).long()
        return F.cosine_embedding_loss(places, places.roll(1, 0), same if planted else 2 * same - 1, 0.2)

    x, y = digits(8)
    chosen = y < 3
    kinds = ("representation_collapse", "constant", "labels_ignored", *NOTHING_LEARNED)
    module = Likeness(mlp(64, 64, 8), loss, adam(2e-3))
    return Built(module, split(32, x[chosen].flatten(1), y[chosen]), {"max_epochs": 15}, Expected(kinds))


@fault("torch", "classes are numbered by unique(return_inverse=True) in each batch of twelve, in which some kinds are missing")
def digits_numbered_by_batch(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        shown = torch.unique(batch[1], return_inverse=True)[1] if planted and net.training else batch[1]
        return F.cross_entropy(net(batch[0]), shown)

    x, y = digits(8)
    module = Judged(mlp(64, 64, 10), loss, adam(1e-3))
    return Built(
        module, split(12, x.flatten(1), y), {"max_epochs": 3}, Expected((*NOTHING_LEARNED, "validation_shift", "loss_spike"))
    )


@fault("torch", "a forum thread, 'loss stays at 2.30': ToTensor() has divided by 255, and the data set divides by 255 again; SGD")
def digits_by_255_twice(planted: bool = True) -> Built:
    images, shown = digits(16)
    images = (images - images.min()) / (images.max() - images.min())
    images = images / 255 if planted else images
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.extend([nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)])
    kinds = ("feature_scale", *SETTING, *STILL, *ALIKE)
    return Built(Judged(net, to_classes, sgd(0.05), right), split(32, images, shown), {"max_epochs": 5}, Expected(kinds))
