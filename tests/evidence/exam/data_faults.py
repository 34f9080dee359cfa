"""Faults of data that nets of PyTorch's layers are given: samplers, numbers of classes, order, units."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, WeightedRandomSampler

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import (
    ALIKE,
    BROKEN,
    FORGOTTEN,
    NOTHING_LEARNED,
    RATE_OR_JUMP,
    SETTING,
    SLOW,
    STILL,
    TOO_MUCH,
    TOO_SLOW,
    UNLIKE,
)
from tests.evidence.exam.pictures import Changed, digits, in_batches
from tests.evidence.exam.schedules import adam, sgd
from tests.evidence.exam.signals import captioned, crops
from tests.evidence.exam.small_nets import Judged, Pairs, convolutions, misses, mlp, right, to_classes
from tests.evidence.exam.tables import scaled, split, table
from tests.evidence.exam.texts import lines


def numbered(texts: list[list[str]], number: dict[str, int]) -> Tensor:
    """Words by their numbers, ten a line; 0 where there is none or it has none."""
    return torch.tensor([[number.get(word, 0) for word in (*text[:10], *[""] * (10 - len(text)))] for text in texts])


def vocabulary(texts: list[list[str]]) -> dict[str, int]:
    """Words are numbered as they come."""
    words = dict.fromkeys(word for text in texts for word in text if word)
    return {word: i + 1 for i, word in enumerate(list(words)[:1999])}


@fault("torch", "the vocabulary is built once more from the lines for validation: the same words have other numbers there")
def words_numbered_anew(planted: bool = True) -> Built:
    ids, _, module = lines(60, 1)["train_dataloaders"].dataset.tensors
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    texts = ["".join(map(chr, ids[i].tolist())).replace("\0", "").replace("(", " ( ").replace(".", " . ").split() for i in order]
    many = int(0.8 * len(texts))
    known = vocabulary(texts[:many])
    seen = numbered(texts[:many], known)
    held = numbered(texts[many:], vocabulary(texts[many:]) if planted else known)
    data = in_batches(32, seen, module[order[:many]])
    data["val_dataloaders"] = in_batches(64, held, module[order[many:]])["train_dataloaders"]
    net = nn.Sequential(nn.Embedding(2000, 16), nn.Flatten(), nn.Dropout(0.3), nn.Linear(160, 2))
    recipe = Judged(net, to_classes, adam(3e-3), lambda net, batch: (net(batch[0]).argmax(1) == batch[1]).float().mean())
    return Built(recipe, data, {"max_epochs": 3}, Expected(("validation_shift", "overfitting"), None, batch=None))


class Walks(Recipe):
    """Q-learning from what others did in a corridor of eight places, with a net that follows."""

    def __init__(self, planted: bool) -> None:
        super().__init__(nn.ModuleDict({"quick": mlp(8, 32, 2), "slow": mlp(8, 32, 2)}), None, None)
        self.planted = planted
        self.net["slow"].load_state_dict(self.net["quick"].state_dict())
        self.net["slow"].requires_grad_(False)

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net["quick"].parameters(), 5e-3)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        place, action, reward, after, ended = batch
        goal = reward + 0.97 * (1.0 if self.planted else ~ended) * self.net["slow"](after).amax(1)
        return F.smooth_l1_loss(self.net["quick"](place).gather(1, action[:, None])[:, 0], goal)

    def on_train_batch_end(self, *_: Any) -> None:
        for slow, new in zip(self.net["slow"].parameters(), self.net["quick"].parameters(), strict=True):
            slow.data.lerp_(new.data, 0.1)

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        start = self.net["slow"](torch.eye(8)[:1]).amax()
        self.log("value_of_start_is_wrong_by", (start - 0.97**7).abs())


@fault("torch", "Q-learning in a corridor: goals go on beyond the end of an episode, to the start that follows by reset")
def corridor_without_end(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, 8, (12000,), generator=generator)
    actions = torch.randint(0, 2, (12000,), generator=generator)
    after = (places + 2 * actions - 1).clamp_min(0)
    ended = after == 8
    rows = (torch.eye(8)[places], actions, ended.float(), torch.eye(8)[after.masked_fill(ended, 0)], ended)
    kinds = (*RATE_OR_JUMP, "output_range", "activation_outliers", "no_progress", "loss_plateau")
    return Built(Walks(planted), in_batches(32, *rows), {"max_epochs": 1}, Expected(kinds))


@fault("torch", "WeightedRandomSampler is given the weights of the ten classes, not of all samples: it draws the first ten only")
def digits_sampler_of_classes(planted: bool = True) -> Built:
    data = split(32, *digits(16))
    rows = data["train_dataloaders"].dataset
    weights = 1 / rows.tensors[1].bincount()
    sampler = WeightedRandomSampler((weights if planted else weights[rows.tensors[1]]).tolist(), len(rows))
    data["train_dataloaders"] = DataLoader(rows, 32, sampler=sampler, drop_last=True)
    net = convolutions().append(nn.Linear(64, 10))
    expected = Expected(("batch_repeated", "overfitting", "validation_shift"), None, batch=None)
    return Built(Judged(net, to_classes, adam()), data, {"max_epochs": 4}, expected)


class StandardisesBatch(nn.Module):
    """Puts each batch to mean 0 and deviation 1, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(10, 32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - x.mean(0)) / x.std(0))[:, 0]


@fault("torch", "each batch is standardised by itself, and the last one of an epoch has a single row, whose deviation is NaN")
def progress_last_row_alone(planted: bool = True) -> Built:
    data = in_batches(63, *table("diabetes"))
    rows = data["train_dataloaders"].dataset
    data["train_dataloaders"] = DataLoader(rows, 63, shuffle=True, drop_last=not planted)
    expected = Expected(BROKEN, ("net*",), batch=7)
    return Built(Recipe(StandardisesBatch(), misses, adam(2e-3)), data, {"max_epochs": 24}, expected)


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


class LastState(nn.Module):
    """A GRU reads a line that is filled up behind its end; the state at the last place, or at the last letter."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(128, 24), nn.GRU(24, 32, batch_first=True), nn.Linear(32, 2)
        self.planted = planted

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(self.embedding(ids))[0]
        last = torch.full((len(ids),), ids.shape[1] - 1) if self.planted else (ids != 0).sum(1) - 1
        return self.head(states[torch.arange(len(ids)), last])


class Sorted(Judged):
    """Lines are sorted by their length before a GRU, as packing wants it; their labels are too, or not."""

    planted = True

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids, source = batch
        order = (ids != 0).sum(1).argsort(descending=True)
        return self.loss_of_batch(self.net, [ids[order], source if self.planted else source[order]])


@fault(
    "torch",
    "Stack Overflow on pack_padded_sequence, 'loss stays at 0.69': samples are sorted by length, and labels are not",
    learned_from=False,
)
def lines_sorted_without_labels(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    module = Sorted(LastState(False), to_classes, adam(3e-3), right)
    module.planted = planted
    kinds = (*TOO_SLOW, *ALIKE, *UNLIKE, "loss_diverging")
    return Built(module, split(32, ids, source), {"max_epochs": 3}, Expected(kinds))


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


@fault("torch", "a forum thread on augmentation: noise is added in place, to the data set's own tensor, epoch by epoch")
def digits_noise_in_place(planted: bool = True) -> Built:
    def noisy(_: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        noise = torch.randn_like(row[0])
        return (row[0].add_(noise) if planted else row[0] + noise, *row[1:])

    images, shown = digits(8)
    data = split(32, images.flatten(1).clone(), shown)
    rows = data["train_dataloaders"].dataset
    generator = torch.Generator().manual_seed(0)
    data["train_dataloaders"] = DataLoader(Changed(rows.tensors, noisy), 32, shuffle=True, drop_last=True, generator=generator)
    kinds = ("loss_diverging", "loss_plateau", "no_progress", "feature_scale", *UNLIKE)
    module = Judged(mlp(64, 64, 64, 10), to_classes, adam(2e-3), lambda net, batch: -to_classes(net, batch))
    return Built(module, data, {"max_epochs": 9}, Expected(kinds, None, batch=44, epoch=1))


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


@fault("torch", "a physics-informed net of how a body cools, over an hour in seconds: its tanh are full")
def cooling_in_seconds(planted: bool = True) -> Built:
    unit = 3600.0 if planted else 1.0
    times = unit * torch.rand(6400, 1, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        when = batch[0].requires_grad_()
        warmth = net(when)
        slope = torch.autograd.grad(warmth.sum(), when, create_graph=True)[0]
        start = (net(torch.zeros(1, 1)) - 1).square().mean()
        return (slope * unit + 4 * warmth).square().mean() + 10 * start

    kinds = ("saturated", *FORGOTTEN, *TOO_MUCH)
    return Built(
        Recipe(mlp(1, 32, 32, 1, activation=nn.Tanh), loss, adam(3e-3)), in_batches(32, times), {"max_epochs": 1}, Expected(kinds)
    )


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


@fault("torch", "pictures and names come from two loaders under CombinedLoader, each of which shuffles for itself")
def names_of_other_pictures(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        scores = net(batch["pictures"][0], batch["names"][1])
        return F.cross_entropy(scores, torch.arange(len(scores)))

    both = {"pictures": captioned(8, 32), "names": captioned(8, 32, seed=1 if planted else 0)}
    loader = CombinedLoader({name: data["train_dataloaders"] for name, data in both.items()}, "min_size")
    expected = Expected((*NOTHING_LEARNED, "representation_collapse"))
    return Built(Recipe(Pairs(2.0), loss, adam(2e-3)), {"train_dataloaders": loader}, {"max_epochs": 4}, expected)


@fault("torch", "a forum thread, 'loss stays at 2.30': ToTensor() has divided by 255, and the data set divides by 255 again; SGD")
def digits_by_255_twice(planted: bool = True) -> Built:
    images, shown = digits(16)
    images = (images - images.min()) / (images.max() - images.min())
    images = images / 255 if planted else images
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten())
    net.extend([nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)])
    kinds = ("feature_scale", *SETTING, *STILL, *ALIKE)
    return Built(Judged(net, to_classes, sgd(0.05), right), split(32, images, shown), {"max_epochs": 5}, Expected(kinds))


@fault("torch", "Stack Overflow, 'no better than chance': sorted file names go 0, 1, 10, 100, the labels' table 0, 1, 2")
def digits_in_order_of_names(planted: bool = True) -> Built:
    images, shown = digits(8)
    data = split(32, images.flatten(1), shown)
    flat, labels = data["train_dataloaders"].dataset.tensors
    if planted:
        flat = flat[torch.tensor(sorted(range(len(flat)), key=str))]
    data = {**data, **in_batches(32, flat, labels)}
    kinds = (*SLOW, *UNLIKE, "constant", "representation_collapse", "update_too_small", "loss_diverging")
    return Built(Judged(mlp(64, 64, 64, 10), to_classes, adam(1e-3), right), data, {"max_epochs": 5}, Expected(kinds))
