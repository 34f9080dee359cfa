"""Attention as people write it, and what its heads should show: whole matrices of logits, in numpy and float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks.alerts import AttentionStats
from lightning_hooks.declare.context import DETAILED_EVERY, FIRST_DETAILED
from lightning_hooks.diagnostics.attention.heads import MEASURED, Head

MINUS = -math.inf
T = TypeVar("T")


def reference(logits: Tensor, mask: Tensor | None = None, rows: Any = None) -> dict[Head, list[float]]:
    """The numbers of each head from whole matrices of logits ``(samples, heads, queries, keys)`` and of what is added to them."""
    values = logits.double().numpy()
    added = np.zeros_like(values) if mask is None else np.broadcast_to(mask.double().numpy(), values.shape)
    samples, heads, queries, _ = values.shape
    taken = [(sample, range(queries)) for sample in range(samples)] if rows is None else rows
    found: dict[Head, list[float]] = {column: [0.0] * heads for column in MEASURED}
    for head in range(heads):
        largest = [MINUS]
        for sample, positions in taken:
            hidden = []
            for query in positions:
                open_keys = ~(added[sample, head, query] <= -9000)
                found[Head.ROWS][head] += 1
                hidden.append(not open_keys.any())
                if not open_keys.any():
                    continue
                plain = values[sample, head, query][open_keys]
                score = plain + added[sample, head, query][open_keys]
                if not np.isfinite(score).all():
                    found[Head.NONFINITE][head] += 1
                    continue
                largest.append(plain.max())
                if open_keys.sum() < 2:
                    continue
                share = np.exp(score - score.max())
                share /= share.sum()
                entropy = -sum(p * math.log(p) for p in share if p > 0)
                found[Head.JUDGED][head] += 1
                found[Head.ENTROPY][head] += entropy / math.log(open_keys.sum())
                found[Head.FIRST][head] += share[0] if open_keys[0] else 0.0
            found[Head.MASKED][head] += sum(hidden)
            found[Head.SAMPLES][head] += 1
            found[Head.MASKED_SAMPLES][head] += all(hidden)
        found[Head.MAX][head] = max(largest)
    return found


class Attention(nn.Module):
    """One layer over ``(samples, 8, 16)``, of 4 heads. What it does is in :meth:`attend`; the logits of each call are kept."""

    def __init__(self, groups: int = 4) -> None:
        super().__init__()
        self.groups = groups
        self.q, self.k, self.v, self.out = (nn.Linear(16, n) for n in (16, 4 * groups, 4 * groups, 16))
        self.kept: list[tuple[Tensor, Tensor | None]] = []  # logits and what is added to them, of each call

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (self.heads(layer(x)) for layer in (self.q, self.k, self.v))
        out = self.attend(query, key, value)
        return self.out(out.transpose(1, 2).reshape(x.shape))

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, 4).transpose(1, 2)

    def keep(self, query: Tensor, key: Tensor, added: Tensor | None) -> None:
        if self.training and torch.is_grad_enabled():
            key = key.detach().repeat_interleave(query.shape[1] // key.shape[1], 1)
            self.kept.append((query.detach().double() @ key.double().transpose(-1, -2) / 2, added))

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError


def causal(length: int = 8) -> Tensor:
    return torch.full((length, length), MINUS).triu(1)


class Causal(Attention):
    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keep(query, key, causal())
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class Grouped(Attention):
    def __init__(self) -> None:
        super().__init__(groups=2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        self.keep(query, key, None)
        return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)


class Padded(Attention):
    """Of each sample the first keys are padding, and queries see no later key: the first rows see none."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        padding = torch.arange(8) >= torch.arange(len(query))[:, None] % 3
        mask = padding[:, None, None, :] & (causal() == 0)
        self.keep(query, key, torch.where(mask, 0.0, MINUS))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class Biased(Attention):
    """A bias for each head that falls with distance, as ALiBi's, and a mask in one tensor."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        distance = (torch.arange(8)[:, None] - torch.arange(8)).abs()
        bias = -distance * torch.tensor([0.5, 0.25, 0.125, 0.0625])[:, None, None] + causal()
        self.keep(query, key, bias[None])
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))


class Cross(Attention):
    """To three keys of another sequence."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = key[:, :, :3], value[:, :, :3]
        self.keep(query, key, None)
        return F.scaled_dot_product_attention(query, key, value)


class Eager(Attention):
    """As Hugging Face writes it out."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = torch.where(causal() == 0, 0.0, torch.finfo(query.dtype).min).to(query.dtype)
        logits = torch.matmul(query, key.transpose(2, 3)) * 0.5
        self.kept.append((logits.detach().double(), causal()))
        return F.softmax(logits + mask, dim=-1, dtype=torch.float32).to(query.dtype) @ value


class BloomAttention(Attention):
    """With samples and heads in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.softmax = nn.Identity()

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        flat = [x.reshape(-1, *x.shape[2:]) for x in (query, key, value)]
        alibi = torch.zeros(1, 1, 8, dtype=query.dtype)
        logits = torch.baddbmm(alibi.expand(len(flat[0]), 8, 8), flat[0], flat[1].transpose(1, 2), beta=1.0, alpha=0.5)
        self.kept.append((logits.detach().double().view(*query.shape[:2], 8, 8), None))
        return torch.bmm(torch.softmax(logits, -1), flat[2]).view(query.shape)


class WithModule(Attention):
    """With a softmax that is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.softmax = nn.Softmax(dim=-1)

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        logits = query @ key.transpose(-1, -2) * 0.5
        self.kept.append((logits.detach().double(), None))
        return self.softmax(logits) @ value


class MultiHead(nn.Module):
    """PyTorch's own layer."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.need_weights = need_weights
        self.layer = nn.MultiheadAttention(16, 4, batch_first=True)
        self.kept: list[tuple[Tensor, Tensor | None]] = []

    def forward(self, x: Tensor) -> Tensor:
        assert self.layer.in_proj_weight is not None
        both = F.linear(x.detach(), self.layer.in_proj_weight.detach(), self.layer.in_proj_bias.detach())
        query, key, _ = (part.view(*x.shape[:2], 4, 4).transpose(1, 2).double() for part in both.chunk(3, -1))
        self.kept.append((query @ key.transpose(-1, -2) / 2, causal()))
        mask = causal() < 0
        return self.layer(x, x, x, attn_mask=mask, need_weights=self.need_weights)[0]


class Checkpointed(Attention):
    """Computed again in backward."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return out

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.kept or self.calls % 2 == 0:  # the first of two: the other one is the recomputation
            self.keep(query, key, causal())
        self.calls += 1
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)

    calls = 0


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "causal/sdpa": Causal,
    "grouped/sdpa": Grouped,
    "padded/sdpa": Padded,
    "biased/sdpa": Biased,
    "cross/sdpa": Cross,
    "eager/softmax": Eager,
    "bloom/softmax": BloomAttention,
    "with_module.softmax/softmax": WithModule,
    "weights.layer/softmax": lambda: MultiHead(True),
    "no_weights.layer/sdpa": lambda: MultiHead(False),
}
"""By the name of the site below ``net.layers``."""


class Transformer(nn.Module):
    """Layers, each added to its input."""

    def __init__(self, names: Sequence[str] = ("causal/sdpa",)) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(16, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleDict({name.split("/")[0].split(".")[0]: LAYERS[name]() for name in names})

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers.values():
            x = x + layer(x)
        return self.head(x.mean(1))

    @property
    def kept(self) -> dict[str, list[tuple[Tensor, Tensor | None]]]:
        return {name: layer.kept for name, layer in self.layers.items()}  # type: ignore[misc]


def detailed(calls: Sequence[T]) -> Sequence[T]:
    """Those of the sampled batches of a window in which costly statistics are taken."""
    return [*calls[:FIRST_DETAILED], *calls[DETAILED_EVERY::DETAILED_EVERY]]


def pooled(calls: Sequence[tuple[Tensor, Tensor | None]]) -> dict[Head, list[float]]:
    """The numbers of each head over several calls, all rows of each."""
    found = [reference(logits, added) for logits, added in calls]
    return {
        head: [(max if head is Head.MAX else sum)(values) for values in zip(*(each[head] for each in found), strict=True)]
        for head in MEASURED
    }


def assert_stats(stats: AttentionStats, expected: dict[Head, list[float]], tolerance: float = 1e-5) -> None:
    """Check the statistics of a site, of which all rows were taken, to 1e-5."""
    assert len(stats.heads) == len(expected[Head.ROWS])
    assert stats.rows == expected[Head.ROWS][0]
    for number, head in enumerate(stats.heads):
        of = {column: values[number] for column, values in expected.items()}
        assert head.max_logit == pytest.approx(of[Head.MAX], rel=tolerance, abs=tolerance)
        assert head.entropy == pytest.approx(of[Head.ENTROPY] / of[Head.JUDGED], rel=tolerance)
        assert head.first_token_share == pytest.approx(of[Head.FIRST] / of[Head.JUDGED], rel=tolerance)
        assert head.masked_rows == of[Head.MASKED] / of[Head.ROWS]
        assert head.nonfinite_rows == of[Head.NONFINITE] / of[Head.ROWS]
    assert stats.max_logit == max(head.max_logit for head in stats.heads)
    assert stats.entropy == pytest.approx(sum(head.entropy for head in stats.heads) / len(stats.heads))
