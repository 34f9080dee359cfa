"""The layers that the architectures are made of, as people write them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.evidence.population.recipe import Recipe

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "leaky_relu": nn.LeakyReLU, "elu": nn.ELU,
    "sigmoid": nn.Sigmoid, "selu": nn.SELU,
}  # fmt: skip


def activation(recipe: Recipe) -> nn.Module:
    """The recipe's activation."""
    return ACTIVATIONS[recipe.activation]()


def norms(recipe: Recipe, width: int, dims: int = 0) -> list[nn.Module]:
    """The recipe's norm, if it has one; ``dims`` 2 for images, 1 for channels first, 0 for channels last."""
    if recipe.norm == "none":
        return []
    if recipe.norm == "group" or (dims and recipe.norm in ("layer", "rms")):
        return [nn.GroupNorm(4 if width % 4 == 0 else 1, width)] if dims else [nn.LayerNorm(width)]
    if recipe.norm == "batch":
        return [(nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d)[dims](width)]
    return [nn.RMSNorm(width) if recipe.norm == "rms" else nn.LayerNorm(width)]


def token_norm(recipe: Recipe, width: int) -> nn.Module:
    """Of a transformer: RMS or layer norm."""
    return nn.RMSNorm(width) if recipe.norm == "rms" else nn.LayerNorm(width)


def dropouts(recipe: Recipe) -> list[nn.Module]:
    """The recipe's dropout, if it has one."""
    return [nn.Dropout(recipe.dropout)] if recipe.dropout else []


def dense(recipe: Recipe, inputs: int, width: int) -> list[nn.Module]:
    """Linear, norm, activation, dropout."""
    norm = norms(recipe, width)
    return [nn.Linear(inputs, width, bias=recipe.bias or not norm), *norm, activation(recipe), *dropouts(recipe)]


class Residual(nn.Module):
    """``x + body(norm(x))``, or ``norm(x + body(x))``. ``shortcut`` is its weight."""

    def __init__(self, body: nn.Module, norm: nn.Module | None = None, pre_norm: bool = True) -> None:
        super().__init__()
        self.norm, self.body, self.pre_norm, self.shortcut = norm, body, pre_norm, 1.0

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(x) if self.norm is not None and self.pre_norm else x
        out = self.shortcut * x + self.body(inner)
        return self.norm(out) if self.norm is not None and not self.pre_norm else out


class Attention(nn.Module):
    """Self-attention. ``scale``, ``causal`` and ``softmax_dim`` may be changed."""

    def __init__(self, recipe: Recipe, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.how, self.softmax_dim = heads, causal, recipe.attention, -1
        self.scale = 1 / math.sqrt(width // heads)
        self.drop = recipe.dropout
        if self.how == "torch":
            self.attention = nn.MultiheadAttention(width, heads, dropout=recipe.dropout, batch_first=True)
        else:
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=recipe.bias), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1) if self.causal else None
        if self.how == "torch":
            return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        drop = self.drop if self.training else 0.0
        if self.how == "sdpa":
            y = F.scaled_dot_product_attention(q, k, v, None if mask is None else ~mask, drop, scale=self.scale)
        else:
            scores = q @ k.transpose(-2, -1) * self.scale
            if mask is not None:
                scores = scores.masked_fill(mask, float("-inf"))
            y = F.dropout(scores.softmax(self.softmax_dim), drop, self.training) @ v
        return self.out(y.transpose(1, 2).flatten(2))


class Experts(nn.Module):
    """A mixture of feed-forward experts, the best two of each token (Shazeer et al. 2017); ``balance`` is the loss to add."""

    def __init__(self, recipe: Recipe, width: int, experts: int = 4, k: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), activation(recipe), nn.Linear(2 * width, width)) for _ in range(experts)
        )
        self.k, self.balance = k, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        top, chosen = shares.topk(self.k, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
        flat, used = shares.flatten(0, -2), (weights > 0).to(shares.dtype).flatten(0, -2)
        self.balance = shares.shape[-1] * (flat.mean(0) * used.mean(0)).sum() / self.k
        return sum(expert(x) * weights[..., i : i + 1] for i, expert in enumerate(self.experts))


class Positions(nn.Module):
    """Adds learned or fixed positions to ``(batch, length, width)``."""

    def __init__(self, kind: str, length: int, width: int) -> None:
        super().__init__()
        angle = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        fixed = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width]
        if kind == "learned":
            self.table = nn.Parameter(0.02 * torch.randn(length, width))
        else:
            self.register_buffer("table", fixed if kind == "sinusoidal" else torch.zeros(length, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.table[: x.shape[1]]


def block(recipe: Recipe, width: int, causal: bool) -> nn.Module:
    """A block of a transformer: attention, then feed-forward or experts."""
    feed = nn.Sequential(nn.Linear(width, 4 * width), activation(recipe), *dropouts(recipe), nn.Linear(4 * width, width))
    feed = Experts(recipe, width) if recipe.model.startswith("moe") else feed
    attention = Attention(recipe, width, recipe.heads, causal)
    return nn.Sequential(
        Residual(attention, token_norm(recipe, width), recipe.pre_norm),
        Residual(feed, token_norm(recipe, width), recipe.pre_norm),
    )
