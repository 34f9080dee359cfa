"""Subtler faults: axes, pairs, labels and masks that do not belong, batches that are not what they seem."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.utilities import CombinedLoader
from sklearn.datasets import make_circles
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.signals import captioned
from tests.evidence.exam.texts import batches
from tests.evidence.exam.unseen_seven_numbers import Pairs
from tests.evidence.exam.unseen_seven_parts import (
    NOTHING_LEARNED,
    TOO_MUCH,
    Scored,
    adam,
    halves,
    mlp,
    sgd,
    small_cnn,
    to_classes,
)


class Likeness(Scored):
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
    return Built(module, halves(32, x[chosen].flatten(1), y[chosen]), {"max_epochs": 15}, Expected(kinds))


@fault("torch", "classes are numbered by unique(return_inverse=True) in each batch of twelve, in which some kinds are missing")
def digits_numbered_by_batch(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        shown = torch.unique(batch[1], return_inverse=True)[1] if planted and net.training else batch[1]
        return F.cross_entropy(net(batch[0]), shown)

    x, y = digits(8)
    module = Scored(mlp(64, 64, 10), loss, adam(1e-3))
    return Built(
        module, halves(12, x.flatten(1), y), {"max_epochs": 3}, Expected((*NOTHING_LEARNED, "validation_shift", "loss_spike"))
    )


class Cleans(nn.Module):
    """What noise is in points, at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(3, 64, 64, 64, 2, act=nn.SiLU)

    def forward(self, points: Tensor, time: Tensor) -> Tensor:
        return self.layers(torch.cat((points, time), 1))


@fault("torch", "a diffusion model of two circles is given the clean points where it was to see the noisy ones")
def circles_without_noise(planted: bool = True) -> Built:
    points = torch.tensor(make_circles(6400, noise=0.02, factor=0.4, random_state=0)[0], dtype=torch.float32)

    def loss(net: Any, batch: Any) -> Tensor:
        time, noise = torch.rand(len(batch[0]), 1), torch.randn_like(batch[0])
        noisy = torch.cos(1.57 * time) * batch[0] + torch.sin(1.57 * time) * noise
        return F.mse_loss(net(batch[0] if planted else noisy, time), noise)

    return Built(
        Recipe(Cleans(), loss, adam(2e-3)), batches(64, points), {"max_epochs": 3}, Expected((*NOTHING_LEARNED, "constant"))
    )


def wearing(number: int = 1600) -> tuple[Tensor, Tensor]:
    """Six sensors over 48 times, shape ``(samples, 48, 6)``: which one swings fastest."""
    generator = torch.Generator().manual_seed(0)
    kind = torch.randint(6, (number,), generator=generator)
    speed = 0.4 + 0.5 * F.one_hot(kind, 6) + 0.1 * torch.rand(number, 6, generator=generator)
    phase = 6.28 * torch.rand(number, 1, 6, generator=generator)
    swings = torch.sin(torch.arange(48)[None, :, None] * speed[:, None] + phase)
    return swings + 0.3 * torch.randn(swings.shape, generator=generator), kind


@fault("torch", "which of six sensors swings fastest: times and channels change places by view, not by transpose")
def sensors_viewed(planted: bool = True) -> Built:
    rows, kind = wearing()
    rows = rows.reshape(len(rows), 6, 48) if planted else rows.transpose(1, 2).contiguous()
    layers = (nn.Conv1d(6, 24, 7, padding=3), nn.ReLU(), nn.Conv1d(24, 24, 5, 2), nn.ReLU())
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(24, 6))
    return Built(Scored(net, to_classes, adam(3e-3)), halves(32, rows, kind), {"max_epochs": 5}, Expected(NOTHING_LEARNED))


class Turns(nn.Module):
    """A layer of attention over ten digits, which says ten digits."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(10, 32), nn.Parameter(torch.randn(10, 32)), nn.Linear(32, 10)
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=batch_first) for _ in range(2)])

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(ids) + self.places))


class Right(Scored):
    """Logs how many digits are right."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("right", (self.net(batch[0]).argmax(-1) == batch[1]).float().mean())


def turned(number: int = 4000) -> tuple[Tensor, Tensor]:
    """Ten digits, and the same in reverse."""
    ids = torch.randint(10, (number, 10), generator=torch.Generator().manual_seed(0))
    return ids, ids.flip(1)


@fault("torch", "ten digits in reverse: cross_entropy takes the places for classes, since there are ten of both")
def reverse_along_places(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])
        return F.cross_entropy(told if planted else told.transpose(1, 2), batch[1])

    expected = Expected(("softmax_dim", *NOTHING_LEARNED, "validation_shift"))
    return Built(Right(Turns(), loss, adam(2e-3)), halves(32, *turned()), {"max_epochs": 3}, expected)


@fault("torch", "ten digits in reverse: layers without batch_first=True attend to the other samples instead of the other places")
def reverse_over_the_batch(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).transpose(1, 2), batch[1])

    expected = Expected((*NOTHING_LEARNED, "attention_uniform", "attention_collapse"))
    return Built(Right(Turns(not planted), loss, adam(2e-3)), halves(32, *turned()), {"max_epochs": 3}, expected)


@fault("torch", "which pixels are bright: half of the pictures are flipped, and their masks are not")
def pixels_flipped_alone(planted: bool = True) -> Built:
    images = digits(16)[0]
    masks = (images > 0.5).float()

    def loss(net: Any, batch: Any) -> Tensor:
        flipped = (torch.rand(len(batch[0]), 1, 1, 1) < 0.5) & net.training
        seen = torch.where(flipped, batch[0].flip(3), batch[0])
        mask = batch[1] if planted else torch.where(flipped, batch[1].flip(3), batch[1])
        return F.binary_cross_entropy_with_logits(net(seen), mask)

    layers = (nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 2, dilation=2), nn.ReLU(), nn.Conv2d(16, 1, 1))
    module = Scored(nn.Sequential(*layers), loss, adam(3e-3))
    return Built(module, halves(32, images, masks), {"max_epochs": 4}, Expected((*NOTHING_LEARNED, "validation_shift")))


@fault("torch", "pictures and names come from two loaders under CombinedLoader, each of which shuffles for itself")
def names_of_other_pictures(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        scores = net(batch["pictures"][0], batch["names"][1])
        return F.cross_entropy(scores, torch.arange(len(scores)))

    both = {"pictures": captioned(8, 32), "names": captioned(8, 32, seed=1 if planted else 0)}
    loader = CombinedLoader({name: data["train_dataloaders"] for name, data in both.items()}, "min_size")
    expected = Expected((*NOTHING_LEARNED, "representation_collapse"))
    return Built(Recipe(Pairs(2.0), loss, adam(2e-3)), {"train_dataloaders": loader}, {"max_epochs": 4}, expected)


@fault("torch", "two circles by three linear layers, the activations between them were left out")
def circles_by_lines(planted: bool = True) -> Built:
    x, y = make_circles(3200, noise=0.05, factor=0.5, random_state=0)
    net = mlp(2, 32, 32, 2, act=nn.Identity if planted else nn.ReLU)
    data = halves(32, torch.tensor(x, dtype=torch.float32), torch.tensor(y))
    return Built(Scored(net, to_classes, adam(3e-3)), data, {"max_epochs": 3}, Expected((*NOTHING_LEARNED, "constant")))


class Balanced(Scored):
    """Logs the share of right answers, a mean over kinds."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        right = self.net(batch[0]).argmax(1) == batch[1]
        self.log("right", torch.stack([right[batch[1] == kind].float().mean() for kind in batch[1].unique()]).mean())


@fault("torch", "rare kinds weigh less, for the weights of the classes are their numbers, not one over them")
def digits_weighed_by_number(planted: bool = True) -> Built:
    x, y = digits(8)
    kept = (y < 2) | (torch.rand(len(y), generator=torch.Generator().manual_seed(0)) < 0.08)
    numbers = torch.bincount(y[kept]).float()
    weights = numbers if planted else 1 / numbers

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1], weight=weights)

    expected = Expected((*NOTHING_LEARNED, "constant", "representation_collapse", "settings", "dead"))
    module = Balanced(mlp(64, 48, 10), loss, adam(1e-3))
    return Built(module, halves(16, x[kept].flatten(1), y[kept], share=0.6), {"max_epochs": 12}, expected)


@fault("torch", "fifty pictures that were left from a trial run are the data set, epoch after epoch")
def digits_of_a_trial(planted: bool = True) -> Built:
    data = halves(25, *digits(16))
    if planted:
        first = data["train_dataloaders"].dataset.tensors
        data |= in_batches(25, *[rows[:50] for rows in first])
    kwargs = {"max_epochs": 125 if planted else 4, "check_val_every_n_epoch": 12 if planted else 1}
    return Built(
        Scored(small_cnn(), to_classes, sgd(0.05)), data, kwargs, Expected(("overfitting", "batch_repeated", "validation_shift"))
    )


class Makes(nn.Module):
    """A net whose weights another one makes from a description of the task."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.makes = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 48 + 48 * 48 + 48))
        self.share = 1.0 if planted else 0.1

    def forward(self, task: Tensor, x: Tensor) -> Tensor:
        first, second, third = (self.share * self.makes(task)).split((48, 48 * 48, 48), 1)
        hidden = torch.tanh(x[..., None] * first[:, None] * 10 + torch.linspace(-3, 3, 48))
        hidden = torch.tanh(hidden @ second.unflatten(1, (48, 48)))
        return (hidden * third[:, None]).sum(-1)


@fault("torch", "a hypernetwork for sines, whose last layer has no smaller start than any other: what it makes fills all tanh")
def sines_by_full_weights(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    task, x = 4 * torch.rand(3200, 2, generator=generator), 2 * torch.rand(3200, 16, generator=generator) - 1

    def loss(net: Any, batch: Any) -> Tensor:
        task, x = batch
        return F.mse_loss(net(task, x), torch.sin(task[:, :1] * x + task[:, 1:]))

    kinds = ("saturated", "poor_init", "exploding", "spike", "weights_growing", "output_range", *TOO_MUCH, *NOTHING_LEARNED)
    return Built(Recipe(Makes(planted), loss, adam(2e-3)), batches(32, task, x), {"max_epochs": 3}, Expected(kinds))


class Codes(nn.Module):
    """Pieces of digits by the nearest of 32 codes."""

    def __init__(self, reach: float) -> None:
        super().__init__()
        self.encode, self.decode = nn.Sequential(mlp(16, 64, 4), nn.BatchNorm1d(4, affine=False)), mlp(4, 64, 16)
        self.codes = nn.Embedding(32, 4)
        nn.init.uniform_(self.codes.weight, -reach, reach)

    def forward(self, pieces: Tensor) -> Tensor:
        given = self.encode(pieces)
        nearest = self.codes(torch.cdist(given, self.codes.weight).argmin(1))
        drawn = self.decode(given + (nearest - given).detach())
        return F.mse_loss(drawn, pieces) + F.mse_loss(nearest, given.detach()) + 0.25 * F.mse_loss(given, nearest.detach())


@fault("torch", "a vector-quantised autoencoder whose codes start between -20 and 20: the one nearest to 0 is all that is used")
def pieces_one_code(planted: bool = True) -> Built:
    images = digits(16)[0]
    pieces = images.unfold(2, 4, 4).unfold(3, 4, 4).reshape(-1, 16)[:12800]
    kinds = ("representation_collapse", "constant", "poor_init", "dead", "zero", "dead_experts", *NOTHING_LEARNED, *TOO_MUCH)
    module = Recipe(Codes(20.0 if planted else 1.5), lambda net, batch: net(batch[0]), adam(2e-3))
    return Built(module, in_batches(64, pieces), {"max_epochs": 1}, Expected(kinds, ("net*",)))
