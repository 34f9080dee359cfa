"""Nets that several recipes share."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1])


def convnet(out: int = 10, width: int = 16, norm: bool = True) -> nn.Sequential:
    """Two convolutions and a linear layer for pictures of 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.BatchNorm2d(width) if norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.BatchNorm2d(2 * width) if norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, out),
    )


class Call(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: Any) -> Any:
        return self.function(*x)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer's layer with the norms before its parts."""

    def __init__(self, width: int, heads: int = 4, causal: bool = False, ff: nn.Module | None = None) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.ff = ff or mlp(width, 4 * width, width, act=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.ff(self.norm2(x))


class GPT(nn.Module):
    """The language model of nanoGPT in a small size."""

    def __init__(
        self, vocabulary: int = 30, width: int = 32, layers: int = 2, length: int = 32, causal: bool = True, ff: Any = None
    ) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, causal=causal, ff=ff() if ff else None) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.apply(self.start)
        self.head.weight = self.token.weight

    @staticmethod
    def start(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


class UNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def double(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

        self.down1, self.down2, self.up = double(1, width), double(width, 2 * width), double(3 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = F.interpolate(self.down2(F.max_pool2d(a, 2)), scale_factor=2.0)
        return self.out(self.up(torch.cat([a, b], 1)))


class Lion(torch.optim.Optimizer):
    """Lion as in its paper: the sign of an interpolated momentum."""

    def __init__(self, params: Any, lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((b1 * m + (1 - b1) * p.grad).sign(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


class Muon(torch.optim.Optimizer):
    """Muon: momentum made orthogonal by Newton-Schulz steps for matrices, plain momentum for the rest."""

    def __init__(self, params: Any, lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = torch.enable_grad()(closure)() if closure else None
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(group["momentum"]).add_(p.grad)
                update = m
                if p.ndim == 2:
                    x = m / (m.norm() + 1e-7)
                    x = x.T if x.shape[0] > x.shape[1] else x
                    for _ in range(5):
                        a = x @ x.T
                        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                    update = x.T if m.shape[0] > m.shape[1] else x
                p.add_(update, alpha=-group["lr"])
        return loss


def frozen(net: nn.Module) -> Any:
    """A copy that is not trained."""
    return copy.deepcopy(net).requires_grad_(False)


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, decay: float) -> None:
    """Move the weights of an average towards those of the net in training."""
    for a, b in zip(slow.parameters(), fast.parameters(), strict=True):
        a.mul_(decay).add_(b, alpha=1 - decay)
    for a, b in zip(slow.buffers(), fast.buffers(), strict=True):
        a.copy_(b)


def pretrain(net: Any, loss: Callable[[Any, Any], Tensor], batches: Iterable[Any], lr: float = 3e-3) -> Any:
    """A short training in plain PyTorch, for recipes that start from a trained net."""
    optimizer = torch.optim.Adam(net.parameters(), lr)
    for batch in batches:
        optimizer.zero_grad()
        loss(net, batch).backward()
        optimizer.step()
    return net
