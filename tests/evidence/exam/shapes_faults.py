"""Faults of shapes: dimensions that pass for each other, heads that are mixed, kinds that are numbered as the blank."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import NOTHING_LEARNED, SLOW, TOO_SLOW, UNLIKE
from tests.evidence.exam.graphs import graphs_adam
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import TWICE_40, adam
from tests.evidence.exam.signals import strips
from tests.evidence.exam.small_nets import Judged, Strip, connectionist, mlp, right
from tests.evidence.exam.tables import split
from tests.evidence.exam.texts import codes_of

MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")


class Heads(nn.Module):
    """Attention by hand: letters are parted into heads by view() and transpose(), or by view() alone, which mixes places."""

    def __init__(self, planted: bool, kinds: int = 12, length: int = 12, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.positions = nn.Embedding(kinds, width), nn.Parameter(torch.randn(length, width))
        self.parts, self.out, self.planted = nn.Linear(width, 3 * width), nn.Linear(width, width), planted
        self.norms, self.body = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), mlp(width, 2 * width, width)
        self.head = nn.Linear(width, kinds)

    def parted(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        if self.planted:
            return x.reshape(samples, 4, length, width // 4)
        return x.view(samples, length, 4, width // 4).transpose(1, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions
        query, key, value = (self.parted(part) for part in self.parts(self.norms[0](x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out((seen if self.planted else seen.transpose(1, 2)).reshape(x.shape))
        return self.head(x + self.body(self.norms[1](x)))


@fault(
    "torch",
    "an issue on attention by hand: q.view(B, heads, T, d) without a transpose mixes places and channels",
    learned_from=False,
)
def symbols_heads_by_view(planted: bool = True) -> Built:
    symbols = torch.randint(0, 12, (6400, 12), generator=torch.Generator().manual_seed(0))
    wanted = (symbols.flip(1) + symbols.roll(1, 1)) % 12

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    kinds = (*TOO_SLOW, *UNLIKE, "attention_uniform", "softmax_dim")
    module = Judged(Heads(planted), loss, adam(3e-3), right)
    return Built(module, split(64, symbols, wanted), {"max_epochs": 5}, Expected(kinds, ("net", "net.*")))


@fault("torch", "Stack Overflow, 'CTC never writes the first letter': labels run from 0 to 9, and 0 is the blank")
def lines_zero_is_the_blank(planted: bool = True) -> Built:
    lines, shown = strips(900)

    def read(net: Any, batch: Any) -> Tensor:
        best, wanted = net(batch[0]).argmax(-1), batch[1]
        found = []
        for row, line in zip(best.tolist(), wanted.tolist(), strict=True):
            letters = [one for one, before in zip(row, [0, *row[:-1]], strict=True) if one not in (0, before)]
            found.append(letters == line)
        return torch.tensor(found).float().mean()

    module = Judged(Strip(), connectionist, adam(5e-3), read)
    kinds = ("output_range", "labels_ignored", "loss_plateau", "no_progress", "step_too_short", "settings", "id_out_of_range")
    data = split(24, lines, shown - 1 if planted else shown)
    return Built(module, data, {"max_epochs": 7, "gradient_clip_val": 5.0}, Expected(kinds))


class Turns(nn.Module):
    """A layer of attention over ten digits, which says ten digits."""

    def __init__(self, batch_first: bool = True) -> None:
        super().__init__()
        self.tokens, self.places, self.head = nn.Embedding(10, 32), nn.Parameter(torch.randn(10, 32)), nn.Linear(32, 10)
        self.layers = nn.Sequential(*[nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=batch_first) for _ in range(2)])

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layers(self.tokens(ids) + self.places))


class Right(Judged):
    """Logs how many digits are right."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("right", (self.net(batch[0]).argmax(-1) == batch[1]).float().mean())


def turned(number: int = 4000) -> tuple[Tensor, Tensor]:
    """Ten digits, and the same in reverse."""
    ids = torch.randint(10, (number, 10), generator=torch.Generator().manual_seed(0))
    return ids, ids.flip(1)


@fault("torch", "ten digits in reverse: cross_entropy takes the places for classes, since there are ten of both")
def reverse_along_places(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])
        return F.cross_entropy(told if planted else told.transpose(1, 2), batch[1])

    expected = Expected(("softmax_dim", *NOTHING_LEARNED, "validation_shift"))
    return Built(Right(Turns(), loss, adam(2e-3)), split(32, *turned()), {"max_epochs": 3}, expected)


class Strips(nn.Module):
    """CRNN: convolutions over a strip of digits, columns read in both directions by an LSTM, and a digit or none for each."""

    def __init__(self, pools: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside, pool in zip((1, 16, 32), (16, 32, 48), pools, strict=True):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(pool)]
        self.cnn = nn.Sequential(*layers, nn.Conv2d(48, 48, (1, 2)), nn.ReLU())
        self.rnn, self.head = nn.LSTM(48, 32, bidirectional=True), nn.Linear(64, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.cnn(x).squeeze(2).permute(2, 0, 1))[0])


@fault(
    "torch", "CRNN reads strips of four digits: all of its pools are square, and three columns are left for CTC", learned_from=False
)
def crnn_too_few_columns(planted: bool = True) -> Built:
    images, shown = digits(8)
    rows = torch.randint(len(images), (1200, 4), generator=torch.Generator().manual_seed(0))
    strips = images[rows].permute(0, 2, 3, 1, 4).flatten(3)
    pools = ((2, 2), (2, 2), (2, 2)) if planted else ((2, 2), (2, 1), (2, 1))

    def loss(net: Any, batch: Any) -> Tensor:
        chances = net(batch[0]).log_softmax(2)
        frames, number = torch.full((len(batch[0]),), len(chances)), torch.full((len(batch[0]),), 4)
        return F.ctc_loss(chances, batch[1] + 1, frames, number)

    kinds = ("nonfinite", "loss_nonfinite")
    module = Recipe(Strips(pools), loss, graphs_adam(2e-3, 0.0))
    return Built(module, in_batches(24, strips, shown[rows]), TWICE_40, Expected(kinds, ("net*", "loss*")))


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


@fault(
    "torch", "Stack Overflow on nn.CrossEntropyLoss: logits (samples, letters, kinds) become (N, C, d1) by view(), not permute()"
)
def notices_logits_viewed(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])
        told = told.reshape(len(told), 4, -1) if planted else told.permute(0, 2, 1)
        return F.cross_entropy(told, batch[1], ignore_index=-1)

    def found(net: Any, batch: Any) -> Tensor:
        known = batch[1] > 0
        return (net(batch[0]).argmax(-1)[known] == batch[1][known]).float().mean()

    kinds = (*SLOW, *UNLIKE, "softmax_dim", "output_range", "update_too_small")
    module = Judged(Tags(), loss, adam(5e-3), found)
    return Built(module, split(32, *notices()), {"max_epochs": 3}, Expected(kinds, ("net", "net.*")))
