"""Faults of what an optimizer holds: what is made, loaded or thawed after it, or never given to it."""

from __future__ import annotations

from typing import Any

import sklearn.datasets
import torch
from lightning.pytorch.callbacks import BackboneFinetuning
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import ALIKE, NO_GRADIENT, NOTHING_LEARNED, SETTING, SLOW, STILL, UNHELD, UNLIKE
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, plain_sgd
from tests.evidence.exam.signals import melodies
from tests.evidence.exam.small_nets import (
    Judged,
    convolutions,
    misses,
    mlp,
    next_character,
    on_digits,
    right,
    small_cnn,
    taught,
    to_classes,
)
from tests.evidence.exam.tables import scaled, split
from tests.evidence.exam.texts import pieces


class LateHead(nn.Module):
    """Makes its head when it sees how wide the features are."""

    def __init__(self, planted: bool, anew: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 24, 3, 2), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten())
        self.anew, self.middle = planted and anew, None if planted else nn.Linear(216, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x)
        if self.middle is None:
            made = nn.Linear(features.shape[1], 64)
            if self.anew:
                return self.head(made(features).relu())
            self.middle = made
        return self.head(self.middle(features).relu())


@fault("torch", "a layer that is made in the first forward, after the optimizer")
def layer_made_late(planted: bool = True) -> Built:
    return on_digits(LateHead(planted, False), plain_sgd(0.02), "not_optimized", "unregistered", sites=("net.middle*",))


@fault("torch", "a layer that is made anew in each forward")
def layer_made_anew(planted: bool = True) -> Built:
    return on_digits(LateHead(planted, True), plain_sgd(0.02), "unregistered", "loss_plateau")


@fault(
    "torch", "net.parameters() is looped over to count them; then the optimizer gets what is left of the generator, beside the head"
)
def digits_generator_used_up(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        body = module.net.body.parameters() if planted else list(module.net.body.parameters())
        assert sum(weight.numel() for weight in body) > 1000
        return torch.optim.AdamW([{"params": body}, {"params": module.net.head.parameters(), "lr": 3e-3}], lr=1e-3)

    net = nn.Sequential()
    net.add_module("body", convolutions())
    net.add_module("head", nn.Linear(64, 10))
    expected = Expected(("not_optimized", "not_updated", "settings", "optimizer_settings", "part_not_learning"), ("net.body*",))
    return Built(Recipe(net, to_classes, optimizers), in_batches(32, *digits(16)), {"max_epochs": 3}, expected)


class NormsWeights(Recipe):
    """Weight normalisation of all convolutions, before the optimizer is made or after it."""

    def __init__(self, net: nn.Module, loss: Any, optimizers: Any, planted: bool) -> None:
        super().__init__(net, loss, optimizers)
        self.planted = planted
        if not planted:
            self.norm()

    def norm(self) -> None:
        for layer in self.net.modules():
            if isinstance(layer, nn.Conv1d):
                weight_norm(layer)

    def on_train_start(self) -> None:
        if self.planted:
            self.norm()


@fault("torch", "weight_norm is put on the convolutions in on_train_start: the optimizer has the weights that were there before")
def notes_normed_after_the_optimizer(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Conv1d(1, 16, 40, 4), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU(), nn.Conv1d(24, 24, 5, 2), nn.ReLU())
    net.extend([nn.AdaptiveMaxPool1d(3), nn.Flatten(), nn.Linear(72, 11)])

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, None]), batch[1][:, 0])

    expected = Expected((*UNHELD, "settings", "optimizer_settings"), ("net.0*", "net.2*", "net.4*"))
    return Built(NormsWeights(net, loss, adam(2e-3), planted), melodies(32), {"max_epochs": 5}, expected)


class Letters(nn.Module):
    """A GRU that writes."""

    def __init__(self, kinds: int = 100) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(kinds, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, kinds)

    def enlarge(self, kinds: int = 128) -> None:
        """More letters: the first ones keep what they have."""
        embedding, head = nn.Embedding(kinds, 32), nn.Linear(64, kinds)
        embedding.weight.data[: self.embedding.num_embeddings] = self.embedding.weight.data
        head.weight.data[: self.head.out_features] = self.head.weight.data
        self.embedding, self.head = embedding, head

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids))[0])


class EnlargedLate(Judged):
    """Its optimizer is made when it is; letters are added before that, or after it."""

    def __init__(self, planted: bool) -> None:
        net = Letters()
        if not planted:
            net.enlarge()
        self.chosen: Any = torch.optim.Adam(net.parameters(), 3e-3)
        if planted:
            net.enlarge()
        super().__init__(net, next_character, lambda module: module.chosen, lambda net, batch: -next_character(net, batch))


@fault(
    "torch",
    "a forum, 'loss stays high after adding tokens': embedding and head are enlarged after the optimizer is made",
)
def manual_enlarged_after_the_optimizer(planted: bool = True) -> Built:
    sites = ("net.embedding*", "net.head*")
    expected = Expected((*UNHELD, "settings", "optimizer_settings"), sites)
    return Built(EnlargedLate(planted), split(16, pieces(49)[:3500]), {"max_epochs": 1}, expected)


class Thaws(Judged):
    """A body that starts from random weights and is frozen until an epoch."""

    def __init__(self, epoch: int, *parts: Any) -> None:
        super().__init__(*parts)
        self.epoch = epoch

    @property
    def backbone(self) -> Any:
        """What is frozen."""
        return self.net[:-1]

    def configure_callbacks(self) -> Any:
        return [BackboneFinetuning(self.epoch, backbone_initial_lr=5e-3, verbose=False)]


@fault("torch", "a body from random weights is to be thawed at step 50, which Lightning's callback reads as an epoch")
def digits_body_never_thawed(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        return torch.optim.Adam(module.net[-1].parameters(), 5e-3)

    expected = Expected((*NO_GRADIENT, *NOTHING_LEARNED, "frozen_statistics"), ("net*",))
    module = Thaws(50 if planted else 1, small_cnn(12), to_classes, optimizers)
    return Built(module, split(32, *digits(16)), {"max_epochs": 5}, expected)


class Named(nn.Module):
    """Names as in timm's nets: the last layer is called ``conv_head``, too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem, self.conv_body, self.norm = nn.Conv2d(1, 12, 3, 2, 1), nn.Conv2d(12, 16, 3, 2, 1), nn.BatchNorm2d(16)
        self.conv_head = nn.Conv2d(16, 5, 2)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.norm(self.conv_body(self.conv_stem(images).relu())).relu()
        return self.conv_head(hidden).flatten(1)


@fault("torch", "Stack Overflow on transfer: all parameters with 'conv' in their names are frozen, and the new head is 'conv_head'")
def digits_frozen_by_a_word(planted: bool = True) -> Built:
    images, shown = digits(8)
    small = shown < 5
    net: Any = taught(Named(), images[small], shown[small])
    net.conv_head = nn.Conv2d(16, 5, 2)
    for name, weight in net.named_parameters():
        if "conv" in name and (planted or "head" not in name):
            weight.requires_grad_(False)

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam([weight for weight in module.parameters() if weight.requires_grad], 3e-3)

    expected = Expected((*UNHELD, *STILL, "poor_init"), ("net.conv*",))
    data = split(32, images[~small], shown[~small] - 5)
    return Built(Judged(net, to_classes, optimizers, right), data, {"max_epochs": 8}, expected)


@fault("torch", "Stack Overflow, 'only the last layer learns': in a loop over layers the optimizer is made anew for each")
def friedman_optimizer_of_the_last(planted: bool = True) -> Built:
    x, y = sklearn.datasets.make_friedman1(2500, noise=0.3, random_state=3)
    net = nn.Sequential(*mlp(10, 24, 24, 24, 1), nn.Flatten(0))

    def optimizers(module: Any) -> Any:
        if not planted:
            return torch.optim.Adam(module.net.parameters(), 3e-3)
        chosen = None
        for layer in module.net:
            if isinstance(layer, nn.Linear):
                chosen = torch.optim.Adam(layer.parameters(), 3e-3)
        return chosen

    data = split(32, torch.tensor(x, dtype=torch.float32), scaled(torch.tensor(y, dtype=torch.float32)))
    expected = Expected((*UNHELD, *SETTING), ("net.0*", "net.2*", "net.4*"))
    return Built(Judged(net, misses, optimizers, lambda net, batch: -misses(net, batch)), data, {"max_epochs": 5}, expected)


class Narrow(nn.Module):
    """Four narrow convolutions and a head."""

    def __init__(self, kinds: int = 5) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(), nn.Linear(32, kinds)
        for before, stride in ((1, 1), (8, 2), (8, 1), (8, 2)):
            self.body.extend([nn.Conv2d(before, 8, 3, stride, 1), nn.BatchNorm2d(8), nn.ReLU()])
        self.body.append(nn.Flatten())

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))


class Probes(Judged):
    """The body stays as it is, in eval mode."""

    def on_train_epoch_start(self) -> None:
        self.net.body.eval()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.net.head.parameters(), 1e-2)


@fault("torch", "an issue, 'pretrained weights do nothing': keys begin with 'module.', load_state_dict(strict=False) is silent")
def digits_loaded_without_prefix(planted: bool = True) -> Built:
    images, shown = digits(8)
    small = shown < 5
    trained = taught(Narrow(), images[small], shown[small]).state_dict()
    net = Narrow()
    kept = {f"module.{name}" if planted else name: weight for name, weight in trained.items() if name.startswith("body")}
    net.load_state_dict(kept, strict=False)
    net.body.requires_grad_(False)
    data = split(32, images[~small], shown[~small] - 5)
    kinds = (*SLOW, *ALIKE, *UNLIKE, "not_loaded", "frozen_statistics", "feature_scale", "update_too_small")
    expected = Expected(kinds, ("net", "net.*"))
    return Built(Probes(net, to_classes, None, right), data, {"max_epochs": 8}, expected)
