"""Healthy trainings on sequences: states carried on, numbers put in order, gates without a past, tags in a chain."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.texts import codes_of, lines
from tests.evidence.exam.unseen_eight_tables import WELL, adam
from tests.evidence.exam.unseen_eight_wiring import tells
from tests.evidence.exam.unseen_nine_pictures import warmed
from tests.evidence.exam.unseen_nine_sequences import MONTHS, manual


class GoesOn(Recipe):
    """Text in order: the state at the end of a batch is that at the beginning of the next, without its gradient."""

    def __init__(self, width: int = 96) -> None:
        nets = nn.ModuleDict({"embedding": nn.Embedding(128, width), "body": nn.LSTM(width, width, batch_first=True)})
        nn.init.uniform_(nets["embedding"].weight, -0.1, 0.1)  # type: ignore[arg-type]
        super().__init__(nets, None, lambda module: torch.optim.SGD(module.parameters(), 10.0))
        self.bias, self.state = nn.Parameter(torch.zeros(128)), None

    def locked(self, x: Tensor, rate: float = 0.1) -> Tensor:
        """Drops the same channels at all places."""
        return x * (torch.rand(len(x), 1, x.shape[2]) >= rate) / (1 - rate)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids = batch[0][0]
        state = None if self.state is None else tuple(part.detach() for part in self.state)
        found, self.state = self.net["body"](self.locked(self.net["embedding"](ids[:, :-1])), state)
        told = F.linear(self.locked(found), self.net["embedding"].weight, self.bias)
        return F.cross_entropy(told.flatten(0, 1), ids[:, 1:].flatten())


@healthy("torch", "PyTorch's word_language_model on letters: tied weights, carried states, locked dropout, SGD at 10, clipped")
def manual_in_order() -> Built:
    codes = codes_of(manual())
    columns = codes[: len(codes) // 20 * 20].view(20, -1)
    rows = columns.unfold(1, 33, 32).transpose(0, 1).contiguous()
    data = {"train_dataloaders": DataLoader(TensorDataset(rows[:300]), 1)}
    return Built(GoesOn(), data, {"max_epochs": 1, "gradient_clip_val": 0.25}, WELL)


class Sorts(nn.Module):
    """PyTorch's own transformer reads numbers and writes them in order."""

    def __init__(self, kinds: int, length: int, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(kinds, width), nn.Parameter(0.1 * torch.randn(2, length, width))
        self.body = nn.Transformer(width, 4, 1, 1, 96, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, kinds)

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(wanted.shape[1])
        read, written = (self.embedding(ids) + self.positions[i] for i, ids in enumerate((read, wanted)))
        return self.head(self.body(read, written, tgt_mask=mask, tgt_is_causal=True))


@healthy("torch", "an encoder and a decoder put numbers in order: two batches a step, smoothed labels, AdamW, warm-up, cosine")
def numbers_in_order() -> Built:
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(1, 30, (10000, 8), generator=generator)
    written = F.pad(numbers.sort(1).values, (1, 0))

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0], batch[1][:, :-1])
        return F.cross_entropy(told.flatten(0, 1), batch[1][:, 1:].flatten(), label_smoothing=0.02)

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.parameters(), 4e-3, betas=(0.9, 0.98), weight_decay=0.01)

    options = {"max_epochs": 2, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    return Built(Recipe(Sorts(30, 8), loss, warmed(optimizers, 200, 20)), in_batches(50, numbers, written), options, WELL)


class Minimal(nn.Module):
    """minGRU: gates and candidates know the letter alone, and the state is a running mean of candidates."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.both = nn.RMSNorm(width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        gate, candidate = self.both(self.norm(x)).chunk(2, -1)
        gate, state, states = gate.sigmoid(), torch.zeros_like(candidate[:, 0]), []
        for share, new in zip(gate.unbind(1), candidate.unbind(1), strict=True):
            state = state + share * (new - state)
            states.append(state)
        return x + torch.stack(states, 1)


class ByMinimal(nn.Module):
    """Two layers of it, then the largest value of each channel."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, width, padding_idx=0), nn.Linear(width, 2)
        self.convolution, self.layers = nn.Conv1d(width, width, 3, padding=1), nn.Sequential(Minimal(width), Minimal(width))

    def forward(self, ids: Tensor) -> Tensor:
        x = F.silu(self.convolution(self.embedding(ids).transpose(1, 2)).transpose(1, 2))
        return self.head(self.layers(x).masked_fill((ids == 0)[..., None], -100.0).amax(1))


@healthy("torch", "minGRU tells which of two modules a line of code is from: gates that need no past, RMSNorm, AdamW, padded lines")
def lines_by_minimal_gates() -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.parameters(), 2e-3, weight_decay=0.02)

    return Built(Recipe(ByMinimal(), tells, optimizers), in_batches(32, ids, source), {"max_epochs": 2}, WELL)


@functools.cache
def notices(count: int = 4000) -> tuple[Tensor, Tensor]:
    """Lines with a room and a date, and what each letter is part of: nothing, a day, a month, a year; -1 behind the end."""
    generator = torch.Generator().manual_seed(0)
    texts, tags = [], []
    for _ in range(count):
        ends = ((1, 99), (0, 12), (1, 29), (1, 99), (0, 3))
        year, month, day, room, form = (int(torch.randint(*two, (), generator=generator)) for two in ends)
        where, when = [(f"room {room} ", 0)], [(str(day), 1), (" ", 0), (MONTHS[month], 2), (" ", 0), (f"{1900 + year}", 3)]
        if form == 1:
            when = [(MONTHS[month][:3], 2), (" ", 0), (str(day), 1), (", ", 0), (f"{1900 + year}", 3)]
        parts = [*when, (" in ", 0), *where] if form == 2 else [*where, *when]
        text, tag = "".join(part for part, _ in parts), [kind for part, kind in parts for _ in part]
        texts.append(F.pad(codes_of(text), (0, 32 - len(text))))
        tags.append(F.pad(torch.tensor(tag), (0, 32 - len(tag)), value=-1))
    return torch.stack(texts), torch.stack(tags)


class Tags(nn.Module):
    """An LSTM to both sides, and a value for each kind at each letter."""

    def __init__(self, kinds: int = 4) -> None:
        super().__init__()
        self.embedding, self.body = nn.Embedding(128, 24, padding_idx=0), nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.head, self.moves = nn.Linear(48, kinds), nn.Parameter(0.1 * torch.randn(kinds, kinds))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids))[0])


def chained(net: Any, batch: Any) -> Tensor:
    """Minus the logarithm of the chance of the right chain of tags, per letter."""
    values, known = net(batch[0]), batch[1] >= 0
    tags = batch[1].clamp_min(0)
    own = (values.gather(2, tags[..., None])[..., 0] * known).sum(1)
    own = own + (net.moves[tags[:, :-1], tags[:, 1:]] * known[:, 1:]).sum(1)
    total = values[:, 0]
    for place in range(1, values.shape[1]):
        new = (total[:, :, None] + net.moves + values[:, place, None]).logsumexp(1)
        total = torch.where(known[:, place, None], new, total)
    return (total.logsumexp(1) - own).sum() / known.sum()


@healthy("torch", "a BiLSTM-CRF as in PyTorch's tutorial, in batches: days, months and years in a line; AMSGrad, clipped at 5")
def notices_tagged_in_a_chain() -> Built:
    module = Recipe(Tags(), chained, adam(1e-2, amsgrad=True))
    return Built(module, in_batches(32, *notices()), {"max_epochs": 2, "gradient_clip_val": 5.0}, WELL)
