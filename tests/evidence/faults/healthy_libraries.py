"""Healthy trainings with what libraries and recipes do on purpose: heads of their own size, spare branches, targets, zeros."""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from typing import Any

import torch
from sklearn import base as installed
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Supervised, adam, adamw, explained, sgd
from tests.evidence.faults.zoo import Built, Expected, healthy

EPOCHS = {"max_epochs": 3}
WELL = Expected()


@healthy("MLP", "a head that starts a hundred times smaller, as policies do", reaches=0.8)
def small_head(seed: int) -> Built:
    net = nets.mlp((64, 64, 64, 64, 64, 10), init=nn.init.kaiming_normal_)
    nn.init.orthogonal_(net.head.weight, 0.01)  # type: ignore[arg-type,union-attr]
    return Built(Supervised(net, adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class ScaledHead(nn.Sequential):
    """Its hidden states are scaled down before the head, which starts as much larger: T5 with a tied head."""

    def forward(self, x: Tensor) -> Tensor:
        for module in list(self)[:-1]:
            x = module(x)
        return self[-1](x / 8)  # type: ignore[no-any-return]


@healthy("MLP", "a head that starts large behind states that are scaled down, as T5 has it", reaches=0.8)
def large_head(seed: int) -> Built:
    net = nets.mlp((64, 64, 64, 64, 64, 10), init=nn.init.kaiming_normal_)
    nn.init.normal_(net.head.weight, std=1.0)  # type: ignore[arg-type,union-attr]
    scaled = ScaledHead(OrderedDict(net.named_children()))
    return Built(Supervised(scaled, adam(1e-3)), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


@healthy("MLP", "Adam, and clipping that acts at every step, far below the usual norm", reaches=0.8)
def always_clipped_adam(seed: int) -> Built:
    module = Supervised(nets.mlp(init=nn.init.kaiming_normal_), adamw())
    return Built(module, data.loaders(data.digits(), 64, seed), {**EPOCHS, "gradient_clip_val": 0.02}, WELL)


class Decoder(nn.Module):
    """Has a layer for a kind of task that this is not."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.dropout_decoder = nets.mlp(), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)  # type: ignore[no-any-return]


Decoder.__module__ = installed.__name__  # as if it came from a library


@healthy("MLP", "a library's model with a branch that this task does not use", reaches=0.8)
def spare_branch(seed: int) -> Built:
    return Built(Supervised(Decoder(), adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class Bootstrap(Supervised):
    """A target network follows the trained one, and is in the optimizer with it, as BYOL's is where nobody froze it."""

    def __init__(self) -> None:
        super().__init__(nets.mlp(), adam())
        self.target = copy.deepcopy(self.net)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for weight, online in zip(self.target.parameters(), self.net.parameters(), strict=True):
                weight.lerp_(online, 0.05)
            goal = self.target(batch[0])
        return super().training_step(batch, batch_idx) + 0.1 * (self.net(batch[0]) - goal).square().mean()


@healthy("MLP", "a target network that follows the trained one", reaches=0.8)
def target_network(seed: int) -> Built:
    return Built(Bootstrap(), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class Theta(nn.Module):
    """One layer under two names, as N-BEATS has its thetas."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nets.mlp((64, 64, 32))
        self.theta_b = self.theta_f = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.theta_f(hidden) + self.theta_b(hidden.relu())


@healthy("MLP", "one layer under two names, by the paper's design", reaches=0.8)
def two_names(seed: int) -> Built:
    return Built(Supervised(Theta(), adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


@healthy("MLP", "a head that starts at zero", reaches=0.8)
def zero_head(seed: int) -> Built:
    net = nets.mlp(init=nn.init.kaiming_normal_)
    nn.init.zeros_(net.head.weight)  # type: ignore[arg-type,union-attr]
    return Built(Supervised(net, adam(1e-2)), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (30 * x).sin()


@healthy("MLP", "a sine net that learns a picture from coordinates, initialised as its paper says", reaches=0.3)
def sine_net(seed: int) -> Built:
    layers: list[nn.Module] = []
    for fan_in, fan_out in ((2, 64), (64, 64), (64, 64), (64, 1)):
        layer = nn.Linear(fan_in, fan_out)
        bound = 1 / fan_in if fan_in == 2 else math.sqrt(6 / fan_in) / 30
        nn.init.uniform_(layer.weight, -bound, bound)
        layers += [layer, Sine()]
    place = torch.rand(2048, 2) * 2 - 1
    value = (4 * place[:, :1]).sin() * (3 * place[:, 1:]).cos()
    split = (place[:1536], value[:1536], place[1536:], value[1536:])
    module = Supervised(nn.Sequential(*layers[:-1]), adam(1e-4), F.mse_loss, explained)
    return Built(module, data.loaders(split, 64, seed), {"max_epochs": 6}, WELL)


@healthy("CNN", "ReLU6 and hard-swish, as mobile nets have them", reaches=0.8)
def mobile(seed: int) -> Built:
    net = nets.cnn(width=32)
    net.act0, net.act1, net.act2, net.act3 = nn.ReLU6(), nn.Hardswish(), nn.ReLU6(), nn.Hardswish()
    return Built(Supervised(net, sgd(0.05, 0.9)), data.loaders(data.images(), 64, seed), EPOCHS, WELL)
