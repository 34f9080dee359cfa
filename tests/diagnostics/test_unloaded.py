"""Bodies that a recipe of fine-tuning takes for trained, and that are as they were initialised."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.diagnostics.setup.initial import first_weights
from lightning_hooks.diagnostics.setup.parameters import Unloaded, unloaded


def mlp(inputs: int = 8, outputs: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, outputs), nn.ReLU())


def cnn() -> nn.Sequential:
    """As torchvision initialises it."""
    layers: list[nn.Module] = []
    for size in (3, 16, 16):
        conv = nn.Conv2d(size, 16, 3, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out")
        layers += [conv, nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())


def encoder() -> nn.Module:
    """As transformers initialises it."""
    body = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False)
    for module in body.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    return body


BODIES: dict[str, tuple[Callable[[], nn.Module], int]] = {"mlp": (mlp, 32), "cnn": (cnn, 64), "encoder": (encoder, 32)}


def model(name: str, trained: bool) -> Any:
    torch.manual_seed(0)
    build, size = BODIES[name]
    net = nn.ModuleDict({"body": build(), "head": nn.Linear(size, 5)})
    if trained:
        with torch.no_grad():
            for parameter in net["body"].parameters():
                parameter += 0.02 * torch.randn_like(parameter)
    return net


def found(net: nn.Module, *groups: Any, optimizers: list[Any] | None = None) -> Unloaded | None:
    optimizers = [torch.optim.Adam(list(groups) or net.parameters(), 1e-3)] if optimizers is None else optimizers
    return unloaded(net, optimizers, first_weights(net).made)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("trained", [False, True])
def test_a_frozen_body(name: str, trained: bool) -> None:
    net = model(name, trained)
    net["body"].requires_grad_(False)
    result = found(net)
    assert (result is None) is trained
    assert result is None or (result.rate == 0 and len(result.layers) == result.known >= 3)


def rnd() -> nn.Module:
    """A random net that another one, with more layers, is to predict: the target is no body."""
    net = nn.ModuleDict({"target": mlp(7), "predictor": nn.Sequential(mlp(7), nn.Linear(32, 32))})
    net["target"].requires_grad_(False)
    return net


def twins() -> nn.Module:
    """A target network, or a teacher: a copy."""
    net = nn.ModuleDict({"policy": mlp(32)})
    net["target"] = copy.deepcopy(net["policy"]).requires_grad_(False)
    return net


def norms_only() -> nn.Module:
    """Training batch norm and only batch norm."""
    net = nn.ModuleDict({"body": cnn()})
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.requires_grad_(False)
    return net


def random_features() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    net[0].requires_grad_(False)
    return net


def frozen_embedding() -> nn.Module:
    net = nn.ModuleDict({"words": nn.Embedding(50, 32), "body": mlp(32)})
    net["words"].requires_grad_(False)
    return net


@pytest.mark.parametrize("build", [rnd, twins, norms_only, random_features, frozen_embedding, mlp, encoder])
def test_what_is_random_on_purpose(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    assert found(build()) is None
