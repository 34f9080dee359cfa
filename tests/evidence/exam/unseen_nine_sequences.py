"""Healthy trainings on sequences: a small GPT by Muon, lines read by CTC, dates, pixels in time, sparse words."""

from __future__ import annotations

import collections
import functools
import re
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from typing_extensions import override

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.optimizers import ByWeight
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.texts import codes_of
from tests.evidence.exam.unseen_eight_tables import WELL, adam
from tests.evidence.exam.unseen_eight_wiring import tells


@functools.cache
def manual() -> str:
    """Python's own manual as it is shown by ``help()``: English, with some code."""
    return re.sub(r"[ *=-]{3,}", " ", "".join(topics[name] for name in sorted(topics))[:200_000])


def pieces(length: int) -> Tensor:
    """The manual in rows of characters."""
    codes = codes_of(manual())
    return codes[: len(codes) // length * length].view(-1, length)


class Muon(ByWeight):
    """Matrices go along the nearest orthogonal matrix of their momentum, found by five steps of Newton and Schulz."""

    def __init__(self, parameters: Any, lr: float = 0.02, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @override
    def update(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.mul_(group["momentum"]).add_(weight.grad)
        way = weight.grad + group["momentum"] * momentum
        scale = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
        weight.sub_(group["lr"] * scale * orthogonal(way))


def orthogonal(matrix: Tensor) -> Tensor:
    """Singular values near 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


def turned(x: Tensor) -> Tensor:
    """Rotary positions."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] * 100 ** (-torch.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()], -1)


class Layer(nn.Module):
    """Causal attention with rotary positions and normed queries, and a net of squared rectifiers, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = (turned(F.rms_norm(part, part.shape[-1:])) for part in (q, k))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(self.up(self.norms[1](x)).relu().square())


class Writer(nn.Module):
    """A GPT as its speed runs have it."""

    def __init__(self, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(128, width), nn.Linear(width, 128, bias=False)
        self.layers, self.norm = nn.ModuleList(Layer(width, 4) for _ in range(layers)), nn.RMSNorm(width)
        nn.init.zeros_(self.head.weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = F.rms_norm(self.embedding(ids), (self.embedding.embedding_dim,))
        for layer in self.layers:
            x = layer(x)
        return 15 * torch.tanh(self.head(self.norm(x)) / 15)


class TwoOptimizers(Recipe):
    """Muon for matrices and AdamW for the rest, in one step by hand; both rates rise, stay, and fall in a line."""

    def __init__(self, net: nn.Module, steps: int) -> None:
        super().__init__(net, None, None)
        self.steps, self.automatic_optimization = steps, False

    def configure_optimizers(self) -> Any:
        matrices = [weight for weight in self.net.layers.parameters() if weight.dim() == 2]
        inside = {id(weight) for weight in matrices}
        others = [weight for weight in self.net.parameters() if id(weight) not in inside]

        def share(step: int) -> float:
            return min((step + 1) / 10, 1.0, 2.5 * (1 - step / self.steps) + 0.02)

        chosen = [Muon(matrices, 0.02), torch.optim.AdamW(others, 3e-3, betas=(0.9, 0.95), weight_decay=0.0)]
        return chosen, [torch.optim.lr_scheduler.LambdaLR(one, share) for one in chosen]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = F.cross_entropy(self.net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())
        chosen: Any = self.optimizers()
        for one in chosen:
            one.zero_grad()
        self.manual_backward(loss)
        for one, schedule in zip(chosen, self.lr_schedulers(), strict=True):
            one.step()
            schedule.step()
        return {"loss": loss.detach()}


@healthy("torch", "a GPT as in its speed runs: Muon for matrices and AdamW for the rest, rotary positions, soft caps")
def manual_by_muon() -> Built:
    return Built(TwoOptimizers(Writer(), 200), in_batches(16, pieces(49)), {"max_epochs": 1, "limit_train_batches": 200}, WELL)


@functools.cache
def strips(count: int = 1600, length: int = 4) -> tuple[Tensor, Tensor]:
    """Digits side by side, with gaps that differ, and which they are, from 1 to 10."""
    generator = torch.Generator().manual_seed(0)
    images, shown = digits(8)
    chosen = torch.randint(0, len(images), (count, length), generator=generator)
    gaps = torch.randint(0, 4, (count, length), generator=generator)
    lines = torch.full((count, 8, 12 * length), float(images.min()))
    for row in range(count):
        place = 0
        for i in range(length):
            place += int(gaps[row, i])
            lines[row, :, place : place + 8] = images[chosen[row, i], 0]
            place += 8
    return lines, shown[chosen] + 1


class Strip(nn.Module):
    """Convolutions over the columns of a line, a GRU to both sides, and a kind for each second column; 0 is the blank."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Sequential(nn.Conv1d(8, 48, 5, padding=2), nn.BatchNorm1d(48), nn.ReLU(), nn.Conv1d(48, 48, 4, 2, 1))
        self.columns.extend([nn.BatchNorm1d(48), nn.ReLU()])
        self.body, self.head = nn.GRU(48, 32, batch_first=True, bidirectional=True), nn.Linear(64, 11)

    def forward(self, lines: Tensor) -> Tensor:
        return self.head(self.body(self.columns(lines).transpose(1, 2))[0]).log_softmax(-1)


def connectionist(net: Any, batch: Any) -> Tensor:
    told = net(batch[0]).transpose(0, 1)
    many = len(batch[0])
    return F.ctc_loss(told, batch[1], torch.full((many,), len(told)), torch.full((many,), batch[1].shape[1]), zero_infinity=True)


@healthy("torch", "lines of four digits are read by CTC: a GRU to both sides says mostly blanks at first; Adam, clipped at 5")
def lines_of_digits_by_ctc() -> Built:
    module = Recipe(Strip(), connectionist, adam(5e-3))
    return Built(module, in_batches(32, *strips()), {"max_epochs": 6, "gradient_clip_val": 5.0}, WELL)


MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")


@functools.cache
def dates(count: int = 4800) -> tuple[Tensor, Tensor]:
    """Dates as people write them, and as machines do; 0 is behind the end."""
    generator = torch.Generator().manual_seed(0)
    written, wanted = [], []
    for _ in range(count):
        year, month, day = (int(torch.randint(*ends, (), generator=generator)) for ends in ((1950, 2030), (0, 12), (1, 29)))
        form = int(torch.randint(0, 3, (), generator=generator))
        name = MONTHS[month]
        written.append((f"{day} {name} {year}", f"{name} {day}, {year}", f"{name[:3]} {day} {year}")[form].ljust(18, "\0"))
        wanted.append(f"\1{year}-{month + 1:02d}-{day:02d}")
    return torch.stack(list(map(codes_of, written))), torch.stack(list(map(codes_of, wanted)))


class Dates(nn.Module):
    """A GRU reads to both sides, another writes and attends to what was read (Bahdanau)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding, self.reader = nn.Embedding(128, 24), nn.GRU(24, width // 2, batch_first=True, bidirectional=True)
        self.of_read, self.of_state, self.energy = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.writer, self.head = nn.GRUCell(24 + width, width), nn.Linear(2 * width, 128)

    def forward(self, read: Tensor, wanted: Tensor) -> Tensor:
        states = self.reader(self.embedding(read))[0]
        keys, state, told = self.of_read(states), states.mean(1), []
        for letter in self.embedding(wanted).unbind(1):
            scores = self.energy(torch.tanh(keys + self.of_state(state)[:, None]))[..., 0].masked_fill(read == 0, -torch.inf)
            seen = (scores.softmax(1)[..., None] * states).sum(1)
            state = self.writer(torch.cat([letter, seen], 1), state)
            told.append(self.head(torch.cat([state, seen], 1)))
        return torch.stack(told, 1)


@healthy("torch", "the tutorial on dates: '3 may 1999' becomes '1999-05-03' by GRUs and additive attention, Adam whose rate halves")
def dates_by_attention() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0], batch[1][:, :-1]).flatten(0, 1), batch[1][:, 1:].flatten())

    def halved(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 5e-3)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.5)]

    return Built(Recipe(Dates(), loss, halved), in_batches(32, *dates()), {"max_epochs": 2, "gradient_clip_val": 1.0}, WELL)


class Stage(nn.Module):
    """Two causal convolutions of one dilation with weight norm, and what came in."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.first = weight_norm(nn.Conv1d(before, after, 3, dilation=dilation))
        self.second = weight_norm(nn.Conv1d(after, after, 3, dilation=dilation))
        self.past = nn.Conv1d(before, after, 1) if before != after else nn.Identity()
        self.drop = nn.Dropout(0.05)

    def forward(self, x: Tensor) -> Tensor:
        y = self.drop(self.first(F.pad(x, (self.pad, 0))).relu())
        return (self.drop(self.second(F.pad(y, (self.pad, 0))).relu()) + self.past(x)).relu()


class LastOf(nn.Module):
    """What a net of sequences says at the end, through a linear layer."""

    def __init__(self, body: nn.Module, width: int, kinds: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, kinds)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x)[..., -1])


@healthy("torch", "a temporal convolutional net reads digits pixel by pixel: weight norm, dilations to 16, NAdam, clipped at 0.5")
def digits_in_time() -> Built:
    body = nn.Sequential(*(Stage(before, 24, 2**i) for i, before in enumerate((1, 24, 24, 24, 24))))
    module = Recipe(LastOf(body, 24, 10), tells, lambda module: torch.optim.NAdam(module.parameters(), 4e-3))
    images, shown = digits(8)
    return Built(module, in_batches(32, images.flatten(2), shown), {"max_epochs": 5, "gradient_clip_val": 0.5}, WELL)


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
