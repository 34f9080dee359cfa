"""Nets of papers that read or write text: states that are carried, ternary weights, tails of rare words, sparse tables."""

from __future__ import annotations

import collections
import functools
import re
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adam, decayed_apart, scheduled, sgd
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


class Carried(LightningModule):
    """PyTorch's example for words: an LSTM whose state is carried from stretch to stretch; uniform weights, SGD at 20."""

    def __init__(self, rows: int = 20) -> None:
        super().__init__()
        self.drop, self.encoder, self.decoder = nn.Dropout(0.2), nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)
        self.rnn = nn.LSTM(64, 64, 2, dropout=0.2)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        self.rows, self.hidden = rows, self._zeros(rows)

    @staticmethod
    def _zeros(rows: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(2, rows, 64), torch.zeros(2, rows, 64)

    def on_train_epoch_start(self) -> None:
        self.hidden = self._zeros(self.rows)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids, targets = batch[0][:-1], batch[0][1:]
        output, (hidden, cell) = self.rnn(self.drop(self.encoder(ids)), self.hidden)
        self.hidden = (hidden.detach(), cell.detach())
        return F.cross_entropy(self.decoder(self.drop(output)).flatten(0, 1), targets.flatten())

    def configure_optimizers(self) -> Any:
        chosen = torch.optim.SGD(self.parameters(), lr=20)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.25)]


@healthy("torch", "PyTorch's example for words: an LSTM whose state goes from stretch to stretch, SGD at 20, clipped at 0.25")
def task_words() -> Built:
    codes, rows, length = corpus(), 20, 35
    columns = codes[: len(codes) // rows * rows].view(rows, -1).T.contiguous()
    stretches = torch.stack([columns[start : start + length + 1] for start in range(0, 40 * length, length)])
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(stretches), batch_size=None)
    return Built(Carried(rows), {"train_dataloaders": data}, {"max_epochs": 2, "gradient_clip_val": 0.25}, WELL)


@functools.cache
def running_text() -> tuple[str, ...]:
    """The words of the corpus in their order, in small letters."""
    return tuple(re.findall(r"[a-z]+", "".join(map(chr, corpus().tolist())).lower()))


class Reads(nn.Module):
    """A recurrent net as in PyTorch's tutorial: a letter and the state go into two linear layers."""

    def __init__(self, kinds: int, width: int = 48) -> None:
        super().__init__()
        self.width, self.state, self.answer = width, nn.Linear(27 + width, width), nn.Linear(width, kinds)

    def forward(self, letters: Tensor) -> Tensor:
        state = torch.zeros(1, self.width)
        for letter in F.one_hot(letters, 27).float():
            state = torch.tanh(self.state(torch.cat([letter[None], state], 1)))
        return F.log_softmax(self.answer(state), 1)


@healthy("torch", "PyTorch's tutorial on names: one word of three made languages at a time, letters one by one, plain SGD")
def words_one_by_one() -> Built:
    generator = torch.Generator().manual_seed(0)
    syllables = (("ka", "to", "mi", "ra", "no"), ("sch", "er", "ung", "burg", "ein"), ("ova", "ski", "pol", "dra", "itz"))
    words, kinds = [], []
    for i in range(450):
        chosen = syllables[i % 3]
        word = "".join(chosen[j] for j in torch.randint(0, 5, (3,), generator=generator).tolist())[:6]
        words.append([ord(letter) - 96 for letter in word])
        kinds.append(i % 3)

    module = Recipe(Reads(3), lambda net, batch: F.nll_loss(net(batch[0][0]), batch[1]), sgd(0.02, 0.0))
    data = in_batches(1, torch.tensor(words_of_one_length(words)), torch.tensor(kinds))
    return Built(module, data, {"max_epochs": 1, "limit_train_batches": 400}, WELL)


def words_of_one_length(words: list[list[int]]) -> list[list[int]]:
    """Filled up with 0 at the front."""
    longest = max(map(len, words))
    return [[0] * (longest - len(word)) + word for word in words]


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


class DroppedWeights(nn.Module):
    """An LSTM whose recurrent weights are dropped, as in AWD-LSTM; rows of the embedding, too."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.body = nn.Embedding(VOCABULARY, width), nn.LSTM(width, width, batch_first=True)
        self.recurrent = nn.Parameter(self.body.weight_hh_l0.detach().clone())
        del self.body._parameters["weight_hh_l0"]
        nn.init.uniform_(self.tokens.weight, -0.1, 0.1)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows = F.dropout(torch.ones(VOCABULARY, 1), 0.1, self.training)
        x = F.embedding(ids, self.tokens.weight * rows)
        self.body.weight_hh_l0 = F.dropout(self.recurrent, 0.2, self.training)
        weights = (self.body.weight_ih_l0, self.body.weight_hh_l0, self.body.bias_ih_l0, self.body.bias_hh_l0)
        zeros = torch.zeros(1, len(ids), x.shape[-1])
        states = torch.lstm(x, (zeros, zeros), weights, True, 1, 0.0, self.training, False, True)[0]
        return F.linear(F.dropout(states, 0.1, self.training), self.tokens.weight, self.bias), states


@healthy(
    "torch",
    "AWD-LSTM writes code: dropped recurrent weights, tied embeddings, penalties on states and their changes, clipped at 0.25",
)
def code_by_awd_lstm() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told, states = net(batch[0][:, :-1])
        changes = 2 * states.square().mean() + (states[:, 1:] - states[:, :-1]).square().mean()
        return F.cross_entropy(told.flatten(0, 1), batch[0][:, 1:].flatten()) + changes

    module = Recipe(DroppedWeights(), loss, adam(4e-3, weight_decay=1.2e-6))
    return Built(module, characters(50, 16), {"max_epochs": 2, "gradient_clip_val": 0.25}, Expected())


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
