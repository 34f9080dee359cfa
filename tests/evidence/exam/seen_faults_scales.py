"""Faults in nets that no other family trains: how large they start, what saturates and what becomes the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Steps, loader
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_lightly import trained as on_views
from tests.evidence.exam.healthy_rl import EPOCHS, mlp
from tests.evidence.exam.healthy_timm import TINY_VIT, create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import language_model
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw
from tests.evidence.exam.seen_faults_models import Text, bigcode_net, next_character, on_digits, sgd
from tests.evidence.exam.texts import VOCABULARY, characters, lines


@fault("torch", "twelve layers of sigmoids, with PyTorch's initial weights")
def sigmoids_deep(planted: bool = True) -> Built:
    activation = nn.Sigmoid if planted else nn.GELU
    layers = [layer for _ in range(12) for layer in (nn.Linear(64, 64), activation())]
    kinds = ("vanishing", "representation_collapse", "constant", "loss_plateau", "update_too_small")
    return on_digits(nn.Sequential(nn.Flatten(), *layers, nn.Linear(64, 10)), adam(3e-3, 0.0), *kinds)


class Chain(nn.Module):
    """Convolutions in a row, each added to what it reads or not."""

    def __init__(self, depth: int, adds: bool) -> None:
        super().__init__()
        self.adds, self.first = adds, nn.Conv2d(1, 16, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(depth))
        self.head = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x.relu()) if self.adds else layer(x.relu())
        return self.head(x)


@fault("torch", "24 convolutions in a row, neither norms nor residuals")
def convolutions_deep(planted: bool = True) -> Built:
    kinds = ("vanishing", "representation_collapse", "constant", "loss_plateau", "update_too_small", "dead")
    return on_digits(Chain(24, not planted), sgd(0.01, momentum=0.9), *kinds)


class Sequence(nn.Module):
    """An Elman net over characters."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(96, VOCABULARY)
        self.body = nn.RNN(32, 96, batch_first=True)
        nn.init.orthogonal_(self.body.weight_hh_l0, deviation)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids))[0])


@fault("torch", "an Elman net whose recurrent weights start with a gain of 30")
def recurrence_full(planted: bool = True) -> Built:
    kinds = ("saturated", "exploding", "vanishing", "poor_init", "always_clipped", "spike", "update_spike", "loss_plateau")
    module = Recipe(Sequence(30.0 if planted else 1.0), next_character, adamw(2e-3))
    return Built(module, characters(32, 16), CLIPPED, Expected(kinds, ("net.body*",)))


class Heads(nn.Module):
    """A causal block whose attention is written by hand."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.embed, self.places = nn.Embedding(VOCABULARY, 64), nn.Embedding(32, 64)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(64), "qkv": nn.Linear(64, 192), "out": nn.Linear(64, 64)}) for _ in range(3)
        )
        self.last, self.head = nn.LayerNorm(64), nn.Linear(64, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            q, k, v = block["qkv"](block["norm"](x)).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
            x = x + block["out"](seen.transpose(1, 2).flatten(2))
        return self.head(self.last(x))


@fault("torch", "attention multiplied by the width of a head instead of divided by its root")
def attention_times_width(planted: bool = True) -> Built:
    kinds = ("attention_logits", "attention_collapse", "exploding", "vanishing", "saturated", "always_clipped")
    module = Recipe(Heads(32.0 if planted else 32**-0.5), next_character, adamw(1e-2))
    return Built(module, characters(32, 16), CLIPPED, Expected(kinds))


@fault("torch", "a transformer of PyTorch's layers whose matrices all start at 0.1")
def transformer_constant(planted: bool = True) -> Built:
    net = Text()
    for parameter in net.parameters() if planted else ():
        if parameter.ndim > 1:
            nn.init.constant_(parameter, 0.1)
    kinds = ("poor_init", "constant", "representation_collapse", "zero", "attention_uniform", "loss_plateau", "vanishing")
    return Built(Recipe(net, next_character, adamw(2e-3)), characters(32, 8), SHORT, Expected((*kinds, "missing")))


class Doubled(nn.Module):
    """A residual MLP without norms; the input of each block is added once or twice."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.first, self.head = times, nn.Linear(64, 64), nn.Linear(64, 10)
        block = lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))  # noqa: E731
        self.blocks = nn.ModuleList(block() for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = self.times * x + block(x)
        return self.head(x)


@fault("torch", "a residual MLP that adds the input of each of twelve blocks twice")
def residual_twice(planted: bool = True) -> Built:
    kinds = ("residual_growth", "exploding", "loss_spike", "activation_outliers", "weights_growing", "update_too_large")
    kinds += ("loss_nonfinite", "nonfinite", "update_spike", "spike", "loss_diverging", "poor_init")
    return on_digits(Doubled(2 if planted else 1), adam(1e-3, 0.0), *kinds)


@fault("torch", "the bias of -4.6 that is for the last layer of a detector, in all convolutions")
def bias_of_a_detector(planted: bool = True) -> Built:
    channels = (1, 16, 32, 32)
    layers = [layer for a, b in pairwise(channels) for layer in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())]
    for layer in layers[::2] if planted else ():
        nn.init.constant_(layer.bias, -4.6)
    kinds = ("dead", "constant", "zero", "representation_collapse", "poor_init", "loss_plateau", "vanishing")
    net = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    return on_digits(net, adam(2e-3, 0.0), *kinds)


@fault("transformers", "GPT-BigCode whose weights start with a deviation of 1 instead of 0.02")
def bigcode_wide_start(planted: bool = True) -> Built:
    kinds = ("poor_init", "attention_logits", "attention_collapse", "exploding", "activation_outliers", "residual_growth")
    net = bigcode_net(initializer_range=1.0 if planted else 0.02)
    expected = Expected((*kinds, "saturated", "update_too_small", "vanishing"))
    return Built(Recipe(net, language_model, adamw(3e-3)), characters(48, 8), SHORT, expected)


@fault("torch_geometric", "SGC over 300 steps instead of 2: all nodes are the same")
def sgc_too_far(planted: bool = True) -> Built:
    from torch_geometric.nn import SGConv

    kinds = ("representation_collapse", "constant", "vanishing", "loss_plateau", "poor_init")
    return expecting(on_nodes(Recipe(SGConv(64, 10, 300 if planted else 2, cached=True), of_nodes, adam(0.1))), *kinds)


@fault("lightly", "a small ViT and FastSiam's mean of views without a stop-gradient or predictor")
def fastsiam_collapses(planted: bool = True) -> Built:
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead

    body = create("vit_tiny_patch16_224", **{**TINY_VIT, "img_size": 16, "patch_size": 4, "depth": 2}, num_classes=0)
    net = nn.ModuleDict(
        {"body": nn.Sequential(body, SimSiamProjectionHead(48, 48, 32)), "guess": SimSiamPredictionHead(32, 16, 32)}
    )
    alike = NegativeCosineSimilarity()

    def loss(net: Any, batch: Any) -> Tensor:
        codes = [net["body"](view) for view in batch]
        first = codes[0] if planted else net["guess"](codes[0])
        others = torch.stack(codes[1:]).mean(0)
        return alike(first, others if planted else others.detach())

    if planted:
        del net["guess"]
    return expecting(on_views(Recipe(net, loss, sgd(0.05, momentum=0.9)), 3), "representation_collapse", sites=("net*",))


@fault("timm", "Visformer whose linear and convolution weights start with a deviation of 2")
def visformer_wide_start(planted: bool = True) -> Built:
    net = create("visformer_tiny", img_size=32, init_channels=8, embed_dim=48, depth=(1, 1, 1), num_heads=3)
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=2.0)
    kinds = ("poor_init", "residual_growth", "attention_logits", "attention_collapse", "exploding", "activation_outliers")
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 2e-3)), 16)
    return expecting(built, *kinds, "saturated", "update_too_small", "vanishing")


@fault("gymnasium", "an expert in Acrobot is copied by a net of tanh whose weights are 60 times too large")
def acrobot_tanh_full(planted: bool = True) -> Built:
    net = mlp(6, 3, 0.01)
    with torch.no_grad():
        for linear in (net[0], net[2]):
            linear.weight.mul_(60.0 if planted else 1.0)

    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 4] > 0).long() * 2

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch["observations"]).flatten(0, 1), batch["actions"].flatten())

    kinds = ("saturated", "poor_init", "vanishing", "exploding", "update_too_small", "zero")
    built = Built(Recipe(net, loss, adam(3e-3, 0.0)), loader(Steps("Acrobot-v1", expert)), EPOCHS, Expected())
    return expecting(built, *kinds, sites=("net*",))


class Reader(nn.Module):
    """An LSTM that reads a line and says where it is from."""

    def __init__(self, start: float | None) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(VOCABULARY, 32), nn.LSTM(32, 48, batch_first=True), nn.Linear(48, 2)
        for parameter in self.body.parameters() if start is not None else ():
            nn.init.constant_(parameter, start)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids))[0].mean(1))


@fault("torch", "an LSTM whose weights and biases all start at 1")
def lstm_of_ones(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[2])

    kinds = ("poor_init", "saturated", "constant", "representation_collapse", "vanishing", "loss_plateau")
    module = Recipe(Reader(1.0 if planted else None), loss, adamw(5e-3))
    return Built(module, lines(32, 16), SHORT, Expected(kinds, ("net.body*",)))
