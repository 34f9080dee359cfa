"""Faults of attention: logits, masks, positions."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Supervised, adam
from tests.evidence.faults.zoo import Built, Expected, broken, fault, worse

EPOCHS = {"max_epochs": 3}


class Sdpa(nn.Module):
    """Self-attention by ``scaled_dot_product_attention``: ``qkv, out``.

    Args:
        width: Of the input.
        heads: How many.
        scale: What the logits are multiplied by; None for one over the root of a head's width.
    """

    def __init__(self, width: int, heads: int, scale: float | None = None) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.reshape(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out(out.transpose(1, 2).reshape(n, t, c))


def sdpa_transformer(**options: Any) -> nets.Transformer:
    """A character model whose blocks call ``scaled_dot_product_attention``."""
    net = nets.Transformer(**options)
    for block in net.blocks:
        block.attention = Sdpa(32, 4)
    return net


@fault("transformer", "queries and keys that start ten times too large, in bfloat16", reaches=0.2, hurts=None)
def large_queries_and_keys(seed: int, planted: bool = True) -> Built:
    net, layer = sdpa_transformer(), seed % 2
    if planted:
        with torch.no_grad():
            net.blocks[layer].attention.qkv.weight[:64] *= 10  # type: ignore[union-attr,index,operator]
    site = f"net.blocks.{layer}.attention*"
    expected = Expected(("attention_logits", "attention_collapse", "poor_init"), (site,))
    return Built(Supervised(net, adam()), data.loaders(data.text(), 32, seed), {**EPOCHS, "precision": "bf16-mixed"}, expected)


@fault("transformer", "logits times the square of a head's width, not over its root", reaches=0.22, hurts=None)
def wrong_scale(seed: int, planted: bool = True) -> Built:
    net, layer = sdpa_transformer(), seed % 2
    net.blocks[layer].attention.scale = 8.0**2 if planted else 1 / math.sqrt(8)
    expected = Expected(("attention_collapse", "attention_logits"), (f"net.blocks.{layer}.attention*",))
    return Built(Supervised(net, adam()), data.loaders(data.text(), 32, seed), EPOCHS, expected)


class Padded(nn.Module):
    """Digits as sequences of 8 rows of different length; attention is not to see the padding.

    Args:
        inverted: Whether the mask has the opposite meaning, so that samples without padding see nothing.
        nan: Whether attention is PyTorch's, which gives NaN then, or written out with -1e9, which gives a mean.
    """

    def __init__(self, inverted: bool, nan: bool) -> None:
        super().__init__()
        self.inverted, self.nan = inverted, nan
        self.embed, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.position = nn.Embedding(8, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True) if nan else LoggedStatistics(32, 4)
        self.norm = nn.LayerNorm(32)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, 8, 8)
        length = 8 - (rows.sum((1, 2)) * 100).long() % 3  # 6 to 8 rows, by something that is fixed for a sample
        padding = torch.arange(8) >= length[:, None]
        hidden = ~padding if self.inverted else padding
        h = self.embed(rows * ~padding[:, :, None]) + self.position.weight
        h = h + (self.attention(h, h, h, key_padding_mask=hidden)[0] if self.nan else self.attention(h, hidden))
        return self.head(self.norm(h).mean(1))


class LoggedStatistics(nn.Module):
    """Attention that is written out, with a mask of -1e9: ``qkv, out``."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (part.reshape(n, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)).masked_fill(hidden[:, None, None], -1e9)
        return self.out((F.softmax(scores, -1) @ v).transpose(1, 2).reshape(n, t, c))


@fault("transformer", "a padding mask with the opposite meaning in nn.MultiheadAttention: NaN", reaches=0.5, hurts=broken)
def inverted_padding_mask(seed: int, planted: bool = True) -> Built:
    module = Supervised(Padded(planted, nan=True), adam())
    expected = Expected(("masked_rows", "nonfinite", "loss_nonfinite"), ("net.attention*",))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault(
    "transformer",
    "a padding mask with the opposite meaning, written out with -1e9",
    reaches=0.5,
    hurts=worse(0.15),
)
def inverted_written_mask(seed: int, planted: bool = True) -> Built:
    module = Supervised(Padded(planted, nan=False), adam())
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, Expected(("masked_rows",), ("net.attention*",)))
