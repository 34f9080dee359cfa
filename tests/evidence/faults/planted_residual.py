"""Faults of a residual stream in float16: a channel of its own size, blocks that multiply what they are given."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.evidence.faults import data
from tests.evidence.faults.planted_numbers import amp
from tests.evidence.faults.tasks import Supervised, adam
from tests.evidence.faults.zoo import Built, Expected, fault, worse

DEPTH = 10
WIDTH = 64


class HalfBlock(nn.Module):
    """A pre-norm block that hands on its sum in float16: ``norm, up, act, down``.

    Args:
        shortcut: What its input is multiplied by; 1 is right.
    """

    def __init__(self, shortcut: float) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.GELU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (self.shortcut * wide + self.down(self.act(self.up(self.norm(wide))))).half()


class HalfStream(nn.Module):
    """``embed, blocks.0, …, norm, head`` on vectors."""

    def __init__(self, shortcut: float = 1.0) -> None:
        super().__init__()
        self.embed = nn.Linear(64, WIDTH)
        self.blocks = nn.ModuleList(HalfBlock(shortcut) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).half()
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.float()))


def digits(net: nn.Module, seed: int, expected: Expected) -> Built:
    return Built(Supervised(net, adam(1e-3)), data.loaders(data.digits(), 64, seed), {"max_epochs": 3, "plugins": amp()}, expected)


@fault("MLP", "a shortcut that is doubled and more: each block multiplies the stream, in float16", reaches=0.8, hurts=None)
def shortcut_doubled(seed: int, planted: bool = True) -> Built:
    return digits(HalfStream(2.8 if planted else 1.0), seed, Expected(("residual_growth",), ("net.blocks.*",)))


@fault("MLP", "one bias of a checkpoint is 20 000: a channel of the stream that hides the others", reaches=0.8, hurts=worse(0.3))
def one_bias_of_20000(seed: int, planted: bool = True) -> Built:
    net = HalfStream()
    if planted:
        with torch.no_grad():
            net.blocks[seed % 3].down.bias[7] = 2e4  # type: ignore[union-attr,index,operator]
    return digits(net, seed, Expected(("activation_outliers",), ("net.blocks.*",)))
