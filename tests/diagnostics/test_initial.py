"""Gains of initial weights against a loop over elements, and modules that stand in several places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.setup.initial import (
    initial_scales,
    roles,
    starting_at_zero,
)


def slow_gain(weight: Tensor, fan_in: int) -> float:
    values = weight.double().flatten().tolist()
    return math.sqrt(sum(value * value for value in values) / len(values)) * math.sqrt(fan_in)


def test_gain_of_every_kind_of_layer() -> None:
    torch.manual_seed(0)
    linear, conv, turned = nn.Linear(12, 5), nn.Conv2d(6, 4, (3, 2), groups=2), nn.ConvTranspose2d(6, 4, 3)
    rnn, bilinear = nn.LSTM(7, 3), nn.MultiheadAttention(8, 2)
    layers = {"linear": linear, "conv": conv, "turned": turned, "rnn": rnn, "attention": bilinear}
    gains, _ = initial_scales(layers.items())
    assert gains == pytest.approx(
        {
            "linear": slow_gain(linear.weight, 12),
            "conv": slow_gain(conv.weight, 3 * 3 * 2),
            "turned": slow_gain(turned.weight, 6 * 9),
            "rnn": max(slow_gain(rnn.weight_ih_l0, 7), slow_gain(rnn.weight_hh_l0, 3)),
            "attention": slow_gain(bilinear.in_proj_weight, 8),
        },
        rel=1e-5,
    )


def test_roles() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.qkv, self.out2 = nn.Linear(8, 8), nn.Linear(8, 24), nn.Linear(24, 8)

    def of(net: nn.Module) -> dict[str, str]:
        return roles([(name, module) for name, module in net.named_modules() if not list(module.children())])

    blocks = nn.ModuleDict({"embed": nn.Embedding(50, 8), "layers": nn.ModuleList([Block(), Block()]), "lm_head": nn.Linear(8, 50)})
    in_a_block = {"q_proj": "Linear q_proj", "qkv": "Linear qkv", "out2": "Linear out"}
    assert of(blocks) == {f"layers.{i}.{name}": role for i in range(2) for name, role in in_a_block.items()}
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    assert of(policy) == {"0": "Linear", "2": "Linear"}  # what the last one puts out nothing takes in
    picture = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 1, 1))
    assert of(picture) == {"0": "Conv2d", "1": "ConvTranspose2d", "3": "Conv2d"}  # an autoencoder ends as wide as it began


def test_weights_that_start_at_zero() -> None:
    token = nn.Parameter(torch.full((1, 1, 8), 1e-6))
    weights = {
        "token": token,
        "zero": nn.Parameter(torch.zeros(3, 4)),
        "small": nn.Parameter(torch.full((3, 4), 3e-3)),
        "bias": nn.Parameter(torch.zeros(4)),
        "frozen": nn.Parameter(torch.zeros(3, 4), requires_grad=False),
        "empty": nn.Parameter(torch.zeros(0, 4)),
    }
    assert starting_at_zero(weights.items()) == {"token", "zero"}
    assert starting_at_zero([]) == frozenset()
