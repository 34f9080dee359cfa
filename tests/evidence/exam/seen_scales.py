"""Faults: scales, initial weights, and outputs that become the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Replay, Steps, loader
from tests.evidence.exam.graphs import of_digits
from tests.evidence.exam.healthy_graphs import adam, of_nodes
from tests.evidence.exam.healthy_lightly import adam as views_adam
from tests.evidence.exam.healthy_lightly import backbone
from tests.evidence.exam.healthy_lightly import trained as on_views
from tests.evidence.exam.healthy_rl import EPOCHS
from tests.evidence.exam.healthy_timm import cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import language_model, masked_language_model
from tests.evidence.exam.planted_graphs import on
from tests.evidence.exam.planted_timm import RATE, expecting, norms
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw
from tests.evidence.exam.seen_episodes import TD3
from tests.evidence.exam.seen_graphs import Layers
from tests.evidence.exam.seen_models import cohere_net, mpnet_net
from tests.evidence.exam.seen_signals import FUTURE, PAST, patchtsmixer_net
from tests.evidence.exam.seen_timm import eva, repvgg, sknet
from tests.evidence.exam.signals import series
from tests.evidence.exam.texts import characters


@fault("transformers", "Cohere whose logits are multiplied by 100 instead of 0.0625")
def cohere_logits_scaled(planted: bool = True) -> Built:
    net = cohere_net(logit_scale=100.0 if planted else 0.25)
    kinds = ("exploding", "output_range", "poor_init", "loss_spike", "always_clipped", "update_too_large", "settings")
    return Built(Recipe(net, language_model, adamw(3e-3)), characters(48, 8), CLIPPED, Expected(kinds))


@fault("transformers", "MPNet whose weights start with a deviation of 2 instead of 0.02")
def mpnet_wide_start(planted: bool = True) -> Built:
    net = mpnet_net(initializer_range=2.0 if planted else 0.02)
    kinds = ("poor_init", "attention_logits", "attention_collapse", "exploding", "activation_outliers", "residual_growth")
    module = Recipe(net, masked_language_model, adamw(2e-3))
    return Built(module, characters(48, 8), SHORT, Expected((*kinds, "saturated", "update_too_small")))


@fault("timm", "EVA: all linear layers start at zero")
def eva_zero_weights(planted: bool = True) -> Built:
    net = eva()
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 3e-3)), 16)
    return expecting(built, "zero", "constant", "representation_collapse", "poor_init", "dead", "attention_uniform", "missing")


@fault("timm", "SKNet: the biases of the first stage's norms start at -10")
def sknet_dead_stage(planted: bool = True) -> Built:
    net = sknet()
    for norm in norms(net.layer1) if planted else ():
        nn.init.constant_(norm.bias, -10.0)
    built = trained(Recipe(net, cross_entropy, optimizer("sgd", 0.02)), 16)
    return expecting(built, "dead", "zero", "constant", "poor_init", "vanishing", sites=("net.layer1*",))


@fault("gymnasium", "TD3: the actor's last layer has a gain of 100, and its tanh is full")
def td3_actor_full(planted: bool = True) -> Built:
    module = TD3()
    with torch.no_grad():
        for actor in (module.actor, module.later[0]):
            actor[4].weight.mul_(1e4 if planted else 1.0)
    built = Built(module, loader(Replay("Pendulum-v1", module.explores, 4, 8)), EPOCHS, Expected())
    return expecting(built, "saturated", "zero", "poor_init", "vanishing", "exploding", sites=("actor*",))


@fault("lightly", "two views are brought together by their squared distance alone")
def lightly_distance_alone(planted: bool = True) -> Built:
    from lightly.loss import VICRegLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    whole = VICRegLoss()
    net = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 48, 24))

    def loss(net: Any, batch: Any) -> Any:
        first, second = net(batch[0]), net(batch[1])
        return F.mse_loss(first, second) if planted else whole(first, second)

    return expecting(on_views(Recipe(net, loss, views_adam(2e-3))), "representation_collapse", sites=("net*",))


@fault("lightly", "decoupled contrast at a temperature of 100 instead of 0.1")
def lightly_hot(planted: bool = True) -> Built:
    from lightly.loss import DCLLoss
    from lightly.models.modules import SimCLRProjectionHead

    net, criterion = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32)), DCLLoss(100.0 if planted else 0.1)
    loss = lambda net, batch: criterion(net(batch[0]), net(batch[1]))  # noqa: E731
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.06, momentum=0.9)  # noqa: E731
    kinds = ("vanishing", "loss_plateau", "update_too_small", "representation_collapse")
    return expecting(on_views(Recipe(net, loss, sgd)), *kinds)


@fault("timm", "EVA: queries and keys of the second block start 300 times too large")
def eva_sharp_attention(planted: bool = True) -> Built:
    net = eva()
    with torch.no_grad():
        for name, parameter in net.blocks[1].attn.named_parameters():
            if name in ("q_proj.weight", "k_proj.weight", "qkv.weight"):
                parameter.mul_(300.0 if planted else 1.0)
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 3e-3)), 16)
    return expecting(built, "attention_logits", "attention_collapse", "poor_init", "exploding", sites=("net.blocks.1*",))


@fault("transformers", "PatchTSMixer: sales in cents, without its scaling")
def patchtsmixer_unscaled(planted: bool = True) -> Built:
    net = patchtsmixer_net(scaling=None if planted else "std")

    def loss(net: Any, batch: Any) -> Any:
        factor = 100.0 if planted else 0.01
        return net(past_values=factor * batch[0][..., None], future_values=factor * batch[1][..., None]).loss / factor**2

    kinds = ("exploding", "update_too_large", "activation_outliers", "loss_plateau", "update_too_small", "saturated", "spike")
    return Built(Recipe(net, loss, adamw(2e-3)), series(16, PAST, FUTURE), SHORT, Expected(kinds))


@fault("torch_geometric", "features that were divided by 255 three times: nodes are next to the same")
def graphs_tiny_features(planted: bool = True) -> Built:
    from torch_geometric.nn import ChebConv

    graph = of_digits().clone()
    graph.x = graph.x / (255.0**3 if planted else 1.0)
    net = Layers(ChebConv(64, 32, 3), ChebConv(32, 10, 3))
    kinds = ("constant", "representation_collapse", "vanishing", "update_too_small", "loss_plateau")
    return expecting(on(graph, Recipe(net, of_nodes, adam())), *kinds)


@fault("timm", "RepVGG: batch norms with an eps of 1e5, which was to be 1e-5")
def repvgg_eps(planted: bool = True) -> Built:
    net = repvgg()
    for norm in norms(net):
        norm.eps = 1e5 if planted else 1e-5
    built = trained(Recipe(net, cross_entropy, optimizer("sgd", 0.2)), 16)
    return expecting(built, "settings", "vanishing", "constant", "representation_collapse", sites=("net*",))


@fault("gymnasium", "an expert is copied from observations in units a million times too large")
def cloning_units(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def expert(seen: Any) -> Any:
        return (seen[:, 2] + 0.5 * seen[:, 3] + 0.05 * seen[:, 1] > 0).long()

    def loss(net: Any, batch: Any) -> Any:
        seen = batch["observations"] * (1e6 if planted else 1.0)
        return F.cross_entropy(net(seen).flatten(0, 1), batch["actions"].flatten())

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)  # noqa: E731
    built = Built(Recipe(net, loss, sgd), loader(Steps("CartPole-v1", expert)), EPOCHS, Expected())
    return expecting(built, *RATE, "dead", "output_range", "spike", "loss_spike", "constant")
