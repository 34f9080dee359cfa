"""Healthy trainings on words and series: tutorials' nets for names, rare words, a fixed reservoir, Reptile."""

from __future__ import annotations

import collections
import copy
import functools
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.texts import corpus
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp, sgd


@functools.cache
def running_text() -> tuple[str, ...]:
    """The words of the corpus in their order, in small letters."""
    return tuple(re.findall(r"[a-z]+", "".join(map(chr, corpus().tolist())).lower()))


@functools.cache
def threes() -> tuple[Tensor, Tensor]:
    """Three letters of a word and the next one; 0 is before its first letter and after its last."""
    before, after = [], []
    for word in sorted(set(running_text())):
        codes = [0, 0, 0, *(ord(letter) - 96 for letter in word), 0]
        for i in range(len(codes) - 3):
            before.append(codes[i : i + 3])
            after.append(codes[i + 3])
    return torch.tensor(before), torch.tensor(after)


@healthy("torch", "makemore: three letters tell the next by an MLP of tanh with batch norm, SGD without momentum at 0.1, then 0.01")
def names_by_three_letters() -> Built:
    layers: list[nn.Module] = [nn.Embedding(27, 10), nn.Flatten()]
    for before, after in ((30, 64), (64, 64), (64, 64)):
        linear = nn.Linear(before, after, bias=False)
        nn.init.normal_(linear.weight, std=5 / 3 / before**0.5)
        layers += [linear, nn.BatchNorm1d(after), nn.Tanh()]
    head = nn.Linear(64, 27)
    head.weight.data *= 0.1

    def falling(module: Any) -> Any:
        chosen = torch.optim.SGD(module.parameters(), 0.1)
        schedule = torch.optim.lr_scheduler.StepLR(chosen, 220, 0.1)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Recipe(nn.Sequential(*layers, head), lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), falling)
    return Built(module, in_batches(32, *threes()), {"max_epochs": 10, "max_steps": 330}, WELL)


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


class Reservoir(nn.Module):
    """A recurrent net that stays as it was drawn, and a linear layer that reads its state."""

    def __init__(self, width: int = 120) -> None:
        super().__init__()
        self.body, self.head = nn.RNN(1, width, batch_first=True).requires_grad_(False), nn.Linear(width, 1)
        matrix = torch.randn(width, width) * (torch.rand(width, width) < 0.1)
        self.body.weight_hh_l0.copy_(0.9 * matrix / torch.linalg.eigvals(matrix).abs().max())
        nn.init.zeros_(self.head.weight)

    def forward(self, series: Tensor) -> Tensor:
        return self.head(self.body(series[..., None])[0])[..., 0]


@healthy(
    "torch", "an echo state net foresees Mackey and Glass's series: the recurrence is random and fixed, one linear layer learns"
)
def echo_of_a_series() -> Built:
    values = [1.2] * 18
    for _ in range(4000):
        values.append(values[-1] + 0.2 * values[-18] / (1 + values[-18] ** 10) - 0.1 * values[-1])
    series = torch.tensor(values[500:])
    rows = ((series - series.mean()) / series.std()).unfold(0, 80, 4)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0][:, :-6])[:, 20:], batch[0][:, 26:])

    module = Recipe(Reservoir(), loss, lambda module: torch.optim.Adam(module.net.head.parameters(), 0.02))
    return Built(module, in_batches(32, rows), {"max_epochs": 8}, WELL)


class Reptile(Recipe):
    """Each task moves a copy of the net for some steps, and the net goes a part of the way after it."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        chosen.zero_grad()
        for weight in self.net.parameters():
            weight.grad = torch.zeros_like(weight)
        losses = []
        for x, y in zip(*batch, strict=True):
            learner = copy.deepcopy(self.net)
            inner = torch.optim.SGD(learner.parameters(), 0.02)
            for part in torch.arange(len(x)).chunk(4):
                inner.zero_grad()
                loss = F.mse_loss(learner(x[part]), y[part])
                loss.backward()
                inner.step()
            losses.append(loss.detach())
            for weight, moved in zip(self.net.parameters(), learner.parameters(), strict=True):
                weight.grad += (weight.data - moved.data) / len(batch[0])
        chosen.step()
        return {"loss": torch.stack(losses).mean()}


@healthy("torch", "Reptile: copies learn a sine each in four steps of SGD, and the way they went is put in as the gradient, Adam")
def sines_by_reptile() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = 10 * torch.rand(1000, 40, 1, generator=generator) - 5
    heights, shifts = 1 + 2 * torch.rand(1000, 1, 1, generator=generator), torch.rand(1000, 1, 1, generator=generator)
    module = Reptile(mlp(1, 48, 48, 1, activation=nn.Tanh), None, adam(3e-3))
    return Built(module, in_batches(5, x, heights * torch.sin(x + shifts)), {"max_epochs": 1}, WELL)
