"""Bodies that a recipe of fine-tuning takes for trained, and that are as they were initialised."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import watch
from lightning_hooks.diagnostics.setup.initial import first_weights
from lightning_hooks.diagnostics.setup.unloaded import Unloaded, unloaded


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


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize(("trained", "rate", "expected"), [(False, 1e-4, True), (False, 5e-4, False), (True, 1e-5, False)])
def test_a_body_that_learns_slowly(name: str, trained: bool, rate: float, expected: bool) -> None:
    net = model(name, trained)
    result = found(net, {"params": net["body"].parameters(), "lr": rate}, {"params": net["head"].parameters()})
    assert (result is not None) is expected
    assert result is None or result.rate == pytest.approx(0.1)


def test_some_keys_that_fit() -> None:
    net, other = model("encoder", trained=False), model("encoder", trained=True)
    net["body"].requires_grad_(False)
    net["body"].layers[0].linear1.load_state_dict(other["body"].layers[0].linear1.state_dict())
    result = found(net)
    assert result is not None
    assert (len(result.layers), result.known) == (9, 10)
    net["body"].layers[0].load_state_dict(other["body"].layers[0].state_dict())
    assert found(net) is None


class LowRank(nn.Module):
    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, 4, bias=False), nn.Linear(4, layer.out_features, bias=False)


def test_adapters_of_a_body_that_was_not_loaded() -> None:
    def adapted() -> nn.Sequential:
        return nn.Sequential(*(LowRank(nn.Linear(32, 32)) for _ in range(4)))

    torch.manual_seed(0)
    net = adapted()
    assert found(net) is not None
    for part in net:
        part.get_submodule("layer").get_parameter("weight").data += 0.05
    assert found(net) is None


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


def test_rates_that_are_no_fine_tuning() -> None:
    torch.manual_seed(0)
    net = nn.ModuleDict({"actor": mlp(), "critic": mlp()})
    rates = {"actor": 1e-4, "critic": 1e-3}
    assert found(net, optimizers=[torch.optim.Adam(net[name].parameters(), rate) for name, rate in rates.items()]) is None
    # muP: the hidden layers are slower than the first one.
    layers = [*net["actor"].parameters()]
    assert found(net, {"params": layers[:2], "lr": 1e-2}, {"params": layers[2:4], "lr": 1e-4}, {"params": layers[4:]}) is None


@pytest.mark.parametrize(
    ("rate", "severity", "how"),
    [(0.0, "warning", "are frozen"), (1e-5, "warning", "have 1% of the head's learning rate"), (1e-4, "info", "have 10% of the")],
)
def test_what_is_said(rate: float, severity: str, how: str) -> None:
    net = model("mlp", trained=False)
    net["body"].requires_grad_(rate > 0)
    groups = [{"params": net["head"].parameters()}, {"params": [p for p in net["body"].parameters() if rate], "lr": rate}]
    optimizer = torch.optim.Adam(groups, 1e-3)
    stack = nn.Sequential(net["body"], net["head"])
    with watch(stack, optimizer, every_n_steps=1, summary=False) as monitor:
        for _ in range(4):
            loss = stack(torch.randn(16, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss)
        monitor.end_window()
    assert monitor.gradients is not None
    (alert,) = [alert for alert in monitor.gradients.alerts if alert.kind == "not_loaded"]
    assert (alert.severity, alert.site) == (severity, "0")
    assert alert.message.startswith(f"3 of 3 layers (0.0, 0.2, 0.4) {how}")
    assert alert.message.endswith(
        ", as if they were trained before, and are as they were initialised: layers after them learn from random features."
    )
    if not rate:
        assert alert.remedies[0].code == "load_state_dict(weights, strict=True)"
