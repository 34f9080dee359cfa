"""Healthy trainings on sequences: text, dates, sums, events, purchases, sounds, policies that write."""

from __future__ import annotations

import datetime
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import digits
from tests.evidence.exam.schedules import decayed_apart, scheduled
from tests.evidence.exam.signals import series
from tests.evidence.exam.texts import VOCABULARY, batches, characters, codes_of
from tests.evidence.exam.unseen_seven_parts import Scored, adam, halves, next_character, to_classes, to_numbers


class Reads(nn.Module):
    """An LSTM whose last state tells a number; its forget gates begin open."""

    def __init__(self, before: int, width: int, outputs: int, opening: float = 1.0) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(before, width, batch_first=True), nn.Linear(width, outputs)
        with torch.no_grad():
            self.body.bias_ih_l0[width : 2 * width] = opening
            self.body.bias_hh_l0[width : 2 * width] = 0

    def forward(self, rows: Tensor) -> Tensor:
        return self.head(self.body(rows)[0][:, -1])


def marked(number: int, length: int) -> tuple[Tensor, Tensor]:
    """Numbers of which two are marked, and their sum."""
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(number, length, generator=generator)
    marks = torch.zeros(number, length)
    for half, start in ((length // 2, 0), (length - length // 2, length // 2)):
        marks.scatter_(1, start + torch.randint(half, (number, 1), generator=generator), 1.0)
    return torch.stack((values, marks), -1), (values * marks).sum(1)


@healthy("torch", "the adding problem over 12 steps: an LSTM with a forget bias of 1, RMSprop, clipped at 1")
def marked_numbers_added() -> Built:
    module = Recipe(Reads(2, 48, 1), to_numbers, lambda module: torch.optim.RMSprop(module.parameters(), 4e-3))
    return Built(module, batches(64, *marked(6400, 12)), {"max_epochs": 4, "gradient_clip_val": 1.0}, Expected())


class Recurrent(nn.Module):
    """A linear recurrent unit: a complex diagonal whose sizes and phases learn."""

    def __init__(self, width: int, states: int) -> None:
        super().__init__()
        sizes, phases = 0.81 + 0.19 * torch.rand(states), 6.28 * torch.rand(states)
        self.size, self.phase = nn.Parameter((-0.5 * sizes.log()).log()), nn.Parameter(phases.log())
        self.enter = nn.Parameter(torch.randn(2, states, width) / (2 * width) ** 0.5)
        self.leave = nn.Parameter(torch.randn(2, width, states) / states**0.5)
        self.gain, self.skip = nn.Parameter((1 - sizes).sqrt().log()), nn.Parameter(torch.randn(width))
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        u = self.norm(x)
        step = torch.complex(-self.size.exp(), self.phase.exp())
        kernel = (step[:, None] * torch.arange(x.shape[1])).exp()
        entered = u.to(torch.cfloat) @ torch.complex(*self.enter).T * self.gain.exp()
        length = 2 * x.shape[1]
        states = torch.fft.ifft(torch.fft.fft(entered, length, 1) * torch.fft.fft(kernel.T, length, 0), dim=1)[:, : x.shape[1]]
        y = (states @ torch.complex(*self.leave).T).real + self.skip * u
        return x + F.glu(self.mix(F.gelu(y)), -1)


@healthy(
    "torch", "two linear recurrent units read a digit pixel by pixel: a complex diagonal at a quarter of the rate, without decay"
)
def pixels_linear_recurrence() -> Built:
    class Pixels(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.units = nn.Linear(1, 32), nn.Sequential(Recurrent(32, 32), Recurrent(32, 32))
            self.head = nn.Linear(32, 10)

        def forward(self, images: Tensor) -> Tensor:
            return self.head(self.units(self.enter(images.flatten(1)[..., None])).mean(1))

    def optimizers(module: Any) -> Any:
        slow = [value for name, value in module.named_parameters() if name.endswith(("size", "phase", "gain"))]
        known = set(map(id, slow))
        others = [value for value in module.parameters() if id(value) not in known]
        return torch.optim.AdamW([{"params": slow, "lr": 1e-3, "weight_decay": 0.0}, {"params": others}], 4e-3, weight_decay=0.05)

    falling = scheduled(optimizers, lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 224))
    return Built(Scored(Pixels(), to_classes, falling), halves(32, *digits(8)), {"max_epochs": 5}, Expected())


class Translator(nn.Module):
    """A GRU in both directions reads, another writes with additive attention to what was read (Bahdanau)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 24)
        self.reader = nn.GRU(24, width // 2, batch_first=True, bidirectional=True)
        self.query, self.key, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1, bias=False)
        self.writer, self.head = nn.GRUCell(24 + width, width), nn.Linear(width, VOCABULARY)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.reader(self.tokens(source))
        state, told = torch.cat((last[0], last[1]), 1), []
        keys, written = self.key(states), self.tokens(F.pad(target[:, :-1], (1, 0), value=1))
        for step in range(target.shape[1]):
            weights = self.score(torch.tanh(self.query(state)[:, None] + keys)).softmax(1)
            state = self.writer(torch.cat((written[:, step], (weights * states).sum(1)), 1), state)
            told.append(self.head(state))
        return torch.stack(told, 1)


def dates(number: int = 3000) -> tuple[Tensor, Tensor]:
    """Dates as people write them, and as 2031-05-17."""
    generator = torch.Generator().manual_seed(0)
    days = torch.randint(1, 30000, (number,), generator=generator).tolist()
    forms = ("%d %B %Y", "%b %d, %Y", "%A %d %m %Y", "%d/%m/%y")
    written = [datetime.date(1970, 1, 1) + datetime.timedelta(day) for day in days]
    long = [codes_of(day.strftime(forms[place % 4]).ljust(24)[:24]) for place, day in enumerate(written)]
    return torch.stack(long), torch.stack([codes_of(day.isoformat()) for day in written])


@healthy(
    "torch", "dates as people write them are translated to ISO: GRUs with additive attention, teacher forcing, Adam, clipped at 5"
)
def dates_translated() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(*batch).flatten(0, 1), batch[1].flatten())

    return Built(
        Recipe(Translator(), loss, adam(5e-3)), batches(32, *dates()), {"max_epochs": 3, "gradient_clip_val": 5.0}, Expected()
    )


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


class Events(nn.Module):
    """A recurrent net of events: how long until the next one, and of which kind (RMTPP)."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds, self.body, self.next = nn.Embedding(3, 8), nn.GRU(9, 32, batch_first=True), nn.Linear(32, 4)
        self.growth = nn.Parameter(torch.tensor(-0.1))

    def forward(self, waits: Tensor, kinds: Tensor) -> Tensor:
        states = self.body(torch.cat((waits[..., None], self.kinds(kinds)), -1))[0][:, :-1]
        level, which = self.next(states).split((1, 3), -1)
        level, growth = level[..., 0], self.growth
        chance = level + growth * waits[:, 1:] + (level.exp() - (level + growth * waits[:, 1:]).exp()) / growth
        return F.cross_entropy(which.flatten(0, 1), kinds[:, 1:].flatten()) - chance.mean()


@healthy("torch", "a point process by a GRU: when the next event comes and of which kind, a likelihood below 0 in the end, Adam")
def events_in_time() -> Built:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.zeros(1500, 20, dtype=torch.long)
    steps = torch.multinomial(torch.tensor([0.1, 0.8, 0.1]), 1500 * 20, True, generator=generator).view(1500, 20)
    kinds = steps.cumsum(1) % 3
    waits = -torch.rand(1500, 20, generator=generator).clamp_min(1e-6).log() * torch.tensor([0.1, 0.4, 1.0])[kinds.roll(1, 1)]
    module = Recipe(Events(), lambda net, batch: net(*batch), adam(5e-3))
    return Built(module, batches(32, waits, kinds), {"max_epochs": 5, "gradient_clip_val": 1.0}, Expected())


class Policy(nn.Module):
    """A GRU that writes eight tokens, one at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.body, self.head = nn.Embedding(11, 16), nn.GRU(16, 48, batch_first=True), nn.Linear(48, 10)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.tokens(ids))[0]).log_softmax(-1)


class Groups(Recipe):
    """Group relative policy optimization: texts of one prompt are rewarded against each other."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        ids = torch.cat((torch.full_like(batch[0], 10), batch[0]), 1).repeat_interleave(8, 0)
        with torch.no_grad():
            for _ in range(8):
                ids = torch.cat((ids, torch.multinomial(self.net(ids)[:, -1].exp(), 1)), 1)
        reward = ((ids[:, 2:] - ids[:, 1:-1]) % 10 == 1).float().mean(1).view(-1, 8)
        self.log("reward", reward.mean())
        better = ((reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)).flatten()
        told = self.net(ids[:, :-1])[:, 1:]
        said = told.gather(-1, ids[:, 2:, None])[..., 0]
        return -((said - said.detach()).exp() * better[:, None]).mean() - 0.003 * -(told.exp() * told).sum(-1).mean()


@healthy("torch", "GRPO: a GRU counts on, eight texts a prompt are ranked among themselves; the loss stays about 0")
def counting_on_in_groups() -> Built:
    first = torch.randint(0, 5, (1600, 1), generator=torch.Generator().manual_seed(0))
    return Built(Groups(Policy(), None, adam(3e-3)), batches(8, first), {"max_epochs": 1, "gradient_clip_val": 1.0}, Expected())


class Shopper(nn.Module):
    """Attention over what was bought, which ranks what comes next (SASRec)."""

    def __init__(self, items: int, length: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items + 1, 32, padding_idx=0)
        self.places = nn.Embedding(length, 32)
        layer = nn.TransformerEncoderLayer(32, 1, 32, 0.2, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(32), enable_nested_tensor=False)
        for table in (self.items, self.places):
            nn.init.normal_(table.weight, std=0.05)

    def forward(self, bought: Tensor) -> Tensor:
        x = self.items(bought) * 32**0.5 + self.places.weight
        return self.layers(x, mask=nn.Transformer.generate_square_subsequent_mask(bought.shape[1]), is_causal=True)


@healthy(
    "torch", "SASRec: what is bought next among 60 things, against one random thing each, padding in front, Adam's beta2 of 0.98"
)
def bought_next() -> Built:
    generator = torch.Generator().manual_seed(0)
    likes = torch.randint(1, 61, (60,), generator=generator)
    rows = [torch.randint(1, 61, (2000,), generator=generator)]
    for _ in range(20):
        random = torch.randint(1, 61, (2000,), generator=generator)
        rows.append(torch.where(torch.rand(2000, generator=generator) < 0.8, likes[rows[-1] - 1], random))
    lengths = torch.randint(5, 21, (2000, 1), generator=generator)
    bought = torch.stack(rows, 1) * (torch.arange(21) >= 20 - lengths)

    def loss(net: Any, batch: Any) -> Tensor:
        states, right = net(batch[0][:, :-1]), batch[0][:, 1:]
        wrong = torch.randint_like(right, 1, 61)
        real = batch[0][:, :-1] > 0
        of_right, of_wrong = ((states * net.items(each)).sum(-1)[real] for each in (right, wrong))
        return F.softplus(-of_right).mean() + F.softplus(of_wrong).mean()

    return Built(Recipe(Shopper(60, 20), loss, adam(3e-3, betas=(0.9, 0.98))), batches(64, bought), {"max_epochs": 8}, Expected())


class Linears(nn.Module):
    """DLinear: a trend and the rest, each by one layer whose weights all start at one over its inputs."""

    def __init__(self, past: int, future: int) -> None:
        super().__init__()
        self.trend, self.season = nn.Linear(past, future), nn.Linear(past, future)
        for layer in (self.trend, self.season):
            nn.init.constant_(layer.weight, 1 / past)

    def forward(self, past: Tensor) -> Tensor:
        level = past.mean(1, keepdim=True)
        scaled = past / level - 1
        smooth = F.avg_pool1d(F.pad(scaled[:, None], (3, 3), mode="replicate"), 7, 1)[:, 0]
        return (self.trend(smooth) + self.season(scaled - smooth) + 1) * level


@healthy(
    "torch", "DLinear forecasts sales: two linear layers whose weights start all alike, error over the level, a rate that halves"
)
def sales_by_two_lines() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return ((net(batch[0]) - batch[1]) / batch[0].mean(1, keepdim=True)).square().mean()

    halved = scheduled(adam(1e-2), lambda chosen: torch.optim.lr_scheduler.StepLR(chosen, 4, 0.5), "epoch")
    return Built(Recipe(Linears(28, 7), loss, halved), series(32, 28, 7), {"max_epochs": 12}, Expected())


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
