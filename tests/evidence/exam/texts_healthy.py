"""Nets of papers that read or write text: states that are carried, ternary weights, tails of rare words, sparse tables."""

from __future__ import annotations

import collections
import functools
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adam, decayed_apart, scheduled
from tests.evidence.exam.small_nets import by_recipe, next_character
from tests.evidence.exam.texts import VOCABULARY, characters, corpus, lines, manual


@healthy("torch", "a bag of hashed trigrams as in fastText: sparse gradients, Adagrad whose rate falls to 0 in a line")
def recipe_bag_of_trigrams() -> Built:
    net = nn.Sequential(nn.EmbeddingBag(1024, 16, sparse=True), nn.Linear(16, 2))
    nn.init.uniform_(net[0].weight, -1 / 16, 1 / 16)

    def loss(net: Any, batch: Any) -> Tensor:
        ids = batch[0]
        return F.cross_entropy(net((ids[:, :-2] * 5381 + ids[:, 1:-1] * 33 + ids[:, 2:]) % 1024), batch[2])

    adagrad = scheduled(
        lambda module: torch.optim.Adagrad(module.parameters(), 0.1),
        lambda chosen: torch.optim.lr_scheduler.LinearLR(chosen, 1.0, 0.0, 100),
    )
    return by_recipe(net, loss, adagrad, lines(48, 16), limit_train_batches=50)


@functools.cache
def running_text() -> tuple[str, ...]:
    """The words of the corpus in their order, in small letters."""
    return tuple(re.findall(r"[a-z]+", "".join(map(chr, corpus().tolist())).lower()))


class RareWords(nn.Module):
    """A GRU over words and an adaptive softmax: seldom words have smaller matrices in the tail."""

    def __init__(self, words: int, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(words, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.AdaptiveLogSoftmaxWithLoss(width, words, [40, 200], div_value=4.0)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.body(self.embedding(ids[:, :-1]))[0]
        return self.head(hidden.flatten(0, 1), ids[:, 1:].flatten()).loss


@healthy("torch", "words by an adaptive softmax: the seldom ones have narrow matrices that few batches touch; a GRU, Adam, clipped")
def rare_words_in_tails() -> Built:
    often = [word for word, _ in collections.Counter(running_text()).most_common()]
    number = {word: i for i, word in enumerate(often)}
    ids = torch.tensor([number[word] for word in running_text()])
    rows = ids[: len(ids) // 16 * 16].view(-1, 16)
    module = Recipe(RareWords(len(often)), lambda net, batch: net(batch[0]), adam(5e-3))
    return Built(module, in_batches(16, rows), {"max_epochs": 10, "max_steps": 240, "gradient_clip_val": 0.5}, WELL)


@healthy("torch", "word2vec: negative samples, two sparse tables that begin near nothing, SparseAdam with a falling rate")
def words_by_sparse_tables() -> Built:
    words = re.findall(r"[a-z]+", manual().lower())
    often = [word for word, times in collections.Counter(words).most_common() if times >= 8]
    number = {word: i for i, word in enumerate(often)}
    ids = torch.tensor([number[word] for word in words if word in number])
    shares = ids.bincount().float()
    keep = torch.rand(len(ids), generator=torch.Generator().manual_seed(0)) < (1e-3 * len(ids) / shares).sqrt()[ids]
    ids = ids[keep]
    middle = torch.cat([ids[2:-2]] * 4)
    beside = torch.cat([ids[2 + by : len(ids) - 2 + by] for by in (-2, -1, 1, 2)])
    net = nn.ModuleDict({side: nn.Embedding(len(often), 32, sparse=True) for side in ("middle", "beside")})
    nn.init.uniform_(net["middle"].weight, -1 / 64, 1 / 64)
    nn.init.zeros_(net["beside"].weight)

    def loss(net: Any, batch: Any) -> Tensor:
        centre = net["middle"](batch[0])
        others = torch.multinomial(shares**0.75, len(centre) * 5, replacement=True).view(-1, 5)
        near = (centre * net["beside"](batch[1])).sum(1)
        far = (net["beside"](others) @ centre[..., None])[..., 0]
        return -(F.logsigmoid(near) + F.logsigmoid(-far).sum(1)).mean()

    def falling(module: Any) -> Any:
        chosen = torch.optim.SparseAdam(list(module.parameters()), 0.02)
        schedule = torch.optim.lr_scheduler.LinearLR(chosen, 1.0, 0.05, 280)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    data = in_batches(256, middle, beside)
    return Built(Recipe(net, loss, falling), data, {"max_epochs": 1, "limit_train_batches": 280}, WELL)


class Ternary(nn.Linear):
    """BitNet's layer: a norm, inputs in eight bits, weights of -1, 0 or 1 times their mean size."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, x.shape[-1:])
        step = 127 / x.abs().amax(-1, keepdim=True).clamp_min(1e-5)
        size = self.weight.abs().mean().clamp_min(1e-5)
        inputs = x + ((x * step).round() / step - x).detach()
        weights = self.weight + ((self.weight / size).round().clamp(-1, 1) * size - self.weight).detach()
        return F.linear(inputs, weights)


class Bits(nn.Module):
    """A decoder whose linear layers are ternary."""

    def __init__(self, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Parameter(0.02 * torch.randn(64, width))
        self.mixes = nn.ModuleList([Ternary(width, 3 * width, bias=False) for _ in range(depth)])
        self.outs = nn.ModuleList([Ternary(width, width, bias=False) for _ in range(depth)])
        self.widens = nn.ModuleList([Ternary(width, 2 * width, bias=False) for _ in range(depth)])
        self.narrows = nn.ModuleList([Ternary(2 * width, width, bias=False) for _ in range(depth)])
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places[: ids.shape[1]]
        for mix, out, widen, narrow in zip(self.mixes, self.outs, self.widens, self.narrows, strict=True):
            q, k, v = mix(x).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            x = x + out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + narrow(F.relu(widen(x)).square())
        return self.head(F.layer_norm(x, x.shape[-1:]))


@healthy(
    "torch", "BitNet writes code: weights of -1, 0 and 1, inputs of eight bits, squared rectifiers, two rates one after the other"
)
def code_in_three_weights() -> Built:
    two = scheduled(
        decayed_apart(4e-3), lambda chosen: torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: 1.0 if step < 120 else 0.5)
    )
    return Built(Recipe(Bits(), next_character, two), characters(49, 16), {"max_epochs": 1, "limit_train_batches": 200}, Expected())
