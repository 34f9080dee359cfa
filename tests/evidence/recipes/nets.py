"""Nets that several recipes share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), act())]
    return nn.Sequential(*layers[:-1])


def convnet(out: int = 10, width: int = 16, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    first = [nn.Conv2d(1, width, 3, padding=1), norm(width), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(width, 2 * width, 3, padding=1), norm(2 * width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8 * width, out))


def block(width: int) -> nn.Module:
    return nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)


class GPT(nn.Module):
    def __init__(self, causal: bool = True, width: int = 32, length: int = 32) -> None:
        super().__init__()
        self.token, self.position, self.head = nn.Embedding(30, width), nn.Embedding(length, width), nn.Linear(width, 30, False)
        self.blocks, self.norm, self.causal = nn.ModuleList([block(width), block(width)]), nn.LayerNorm(width), causal
        for part in (self.token, self.position):
            nn.init.normal_(part.weight, std=0.1)
        self.head.weight = self.token.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1]) if self.causal else None
        for layer in self.blocks:
            x = layer(x, mask)
        return self.head(self.norm(x))


class Lion(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.add_((0.9 * m + 0.1 * p.grad).sign(), alpha=-group["lr"])
                m.mul_(0.99).add_(p.grad, alpha=0.01)
        return loss


def frozen(net: nn.Module) -> Any:
    return copy.deepcopy(net).requires_grad_(False)


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, decay: float) -> None:
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        a.lerp_(b, 1 - decay)
    for a, b in zip(slow.buffers(), fast.buffers(), strict=True):
        a.copy_(b)


def pretrain(net: Any, loss: Callable[[Any, Any], Tensor], batches: Iterable[Any], lr: float = 3e-3) -> Any:
    optimizer = torch.optim.Adam(net.parameters(), lr)
    for batch in batches:
        optimizer.zero_grad()
        loss(net, batch).backward()
        optimizer.step()
    return net
