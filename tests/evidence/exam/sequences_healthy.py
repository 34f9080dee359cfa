"""Nets of papers for series and sequences: linear and fixed recurrences, point processes, CTC, random fields, groups of texts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import tags
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, scheduled, warmed
from tests.evidence.exam.signals import melodies, series, strips
from tests.evidence.exam.small_nets import Judged, Strip, by_recipe, connectionist, to_classes
from tests.evidence.exam.tables import split
from tests.evidence.exam.texts import VOCABULARY, corpus


class WaveNet(nn.Module):
    """Gated, dilated, causal convolutions with residual connections and skips."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**index) for index in range(6))
        self.mixing = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(6))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 64, 1))

    def forward(self, codes: Tensor) -> Tensor:
        x = self.embedding(codes).transpose(1, 2)
        skips = torch.zeros_like(x)
        for gated, mixing in zip(self.gated, self.mixing, strict=True):
            signal, gate = gated(F.pad(x, (gated.dilation[0], 0))).chunk(2, 1)
            more, skip = mixing(signal.tanh() * gate.sigmoid()).chunk(2, 1)
            x, skips = x + more, skips + skip
        return self.head(skips)


@healthy("torch", "WaveNet over sounds of 64 mu-law levels, Adam")
def recipe_wavenet() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        sound = (batch[0][:, :301] / 3).clamp(-1, 1)
        levels = sound.sign() * (1 + 63 * sound.abs()).log() / math.log(64)
        codes = ((levels + 1) / 2 * 63).round().long()
        return F.cross_entropy(net(codes[:, :-1]), codes[:, 1:])

    return by_recipe(WaveNet(), loss, adam(2e-3), melodies(8))


class Tagger(nn.Module):
    """PyTorch's tutorial on LSTM and CRF: scores of tags, scores from tag to tag, and the sum over all ways."""

    def __init__(self, tags: int = 3) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(VOCABULARY, 32), nn.LSTM(32, 24, bidirectional=True, batch_first=True)
        self.to_tags, self.transitions = nn.Linear(48, tags), nn.Parameter(torch.randn(tags, tags))

    def forward(self, ids: Tensor, tags: Tensor) -> Tensor:
        scores = self.to_tags(self.lstm(self.embed(ids))[0])
        ways = scores[:, 0]
        for step in range(1, ids.shape[1]):
            ways = (ways[:, :, None] + self.transitions).logsumexp(1) + scores[:, step]
        chosen = scores.gather(2, tags[..., None]).sum((1, 2)) + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        return (ways.logsumexp(1) - chosen).mean()


@healthy("torch", "an LSTM under a conditional random field finds words: a loss that is a sum over the line, SGD with decay")
def task_random_field() -> Built:
    rows = corpus()[: 30 * 1600].view(-1, 30)
    sgd = lambda module: torch.optim.SGD(module.parameters(), lr=0.01, weight_decay=1e-4)  # noqa: E731
    loss = lambda net, batch: net(*batch)  # noqa: E731
    return by_recipe(Tagger(), loss, sgd, in_batches(16, rows, tags(rows)), limit_train_batches=35)


class Continued(nn.Module):
    """PyTorch's example for time sequences: two LSTM cells that give the next value of a sine, in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm1, self.lstm2, self.linear = nn.LSTMCell(1, 24), nn.LSTMCell(24, 24), nn.Linear(24, 1)

    def forward(self, x: Tensor) -> Tensor:
        first, second, outputs = None, None, []
        for value in x.split(1, dim=1):
            first = self.lstm1(value, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


@healthy("torch", "PyTorch's example for sines: LSTM cells in double precision, all data in each step of L-BFGS at 0.8")
def task_sines() -> Built:
    generator = torch.Generator().manual_seed(2)
    shifts = torch.randint(-80, 80, (40, 1), generator=generator)
    waves = torch.sin((torch.arange(40) + shifts) / 6.0).double()
    loss = lambda net, batch: F.mse_loss(net(batch[0][:, :-1]), batch[0][:, 1:])  # noqa: E731
    lbfgs = lambda module: torch.optim.LBFGS(module.parameters(), lr=0.8, max_iter=3)  # noqa: E731
    return by_recipe(Continued().double(), loss, lbfgs, in_batches(40, waves), max_epochs=30, precision="64-true")


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


class ByFrequencies(nn.Module):
    """FITS: each series is centred and scaled by itself; a complex linear layer lengthens its lower frequencies."""

    def __init__(self, past: int = 96, future: int = 32, low: int = 24) -> None:
        super().__init__()
        self.past, self.total, self.low = past, past + future, low
        self.longer = nn.Linear(low, low * (past + future) // past, dtype=torch.cfloat)

    def forward(self, past: Tensor) -> Tensor:
        middle, width = past.mean(1, keepdim=True), past.std(1, keepdim=True) + 1e-5
        known = torch.fft.rfft((past - middle) / width)[:, : self.low]
        longer = F.pad(self.longer(known), (0, self.total // 2 + 1 - self.longer.out_features))
        return torch.fft.irfft(longer, self.total) * (self.total / self.past) * width + middle


@healthy(
    "torch",
    "FITS forecasts loads of the day and the week: complex weights between frequencies, each series scaled; Adam",
    learned_from=False,
)
def loads_by_frequencies() -> Built:
    generator = torch.Generator().manual_seed(0)
    start, level, trend = (torch.rand(6400, 1, generator=generator) for _ in range(3))
    times = torch.arange(128) + 500 * start
    waves = (2 * math.pi * times / 24).sin() + 0.6 * (2 * math.pi * times / 12 + 4 * level).cos() + (0.5 - trend) * times / 100
    loads = (10 + 20 * level) * (3 + waves + 0.1 * torch.randn(waves.shape, generator=generator))

    def loss(net: Any, batch: Any) -> Tensor:
        size = batch[0].std(1, keepdim=True)
        return F.mse_loss(net(batch[0][:, :96]) / size, batch[0] / size)

    module = Recipe(ByFrequencies(), loss, warmed(lambda module: torch.optim.Adam(module.parameters(), 2e-3), 400))
    return Built(module, in_batches(64, loads), {"max_epochs": 4}, WELL)


@healthy("torch", "lines of four digits are read by CTC: a GRU to both sides says mostly blanks at first; Adam, clipped at 5")
def lines_of_digits_by_ctc() -> Built:
    module = Recipe(Strip(), connectionist, adam(5e-3))
    return Built(module, in_batches(32, *strips()), {"max_epochs": 6, "gradient_clip_val": 5.0}, WELL)


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
    return Built(Judged(Pixels(), to_classes, falling), split(32, *digits(8)), {"max_epochs": 5}, Expected())


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
    return Built(module, in_batches(32, waits, kinds), {"max_epochs": 5, "gradient_clip_val": 1.0}, Expected())


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
    return Built(Groups(Policy(), None, adam(3e-3)), in_batches(8, first), {"max_epochs": 1, "gradient_clip_val": 1.0}, Expected())


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


class Pointer(nn.Module):
    """A pointer network: an LSTM reads numbers, another one points at them by additive attention."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed, self.start = nn.Linear(1, width), nn.Parameter(torch.randn(width) * 0.1)
        self.reader, self.writer = nn.LSTM(width, width, batch_first=True), nn.LSTM(width, width, batch_first=True)
        self.key, self.query, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor, order: Tensor) -> Tensor:
        tokens = self.embed(x[..., None])
        read, state = self.reader(tokens)
        given = tokens.gather(1, order[..., None].expand_as(tokens))[:, :-1]
        written, _ = self.writer(torch.cat([self.start.expand(len(x), 1, -1), given], 1), state)
        return self.score(torch.tanh(self.key(read)[:, None] + self.query(written)[:, :, None]))[..., 0]


@healthy(
    "torch",
    "pointer network that sorts six numbers, an LSTM that points at what another one read, Adam, clipped at 2",
    learned_from=False,
)
def study_pointer() -> Built:
    x = torch.rand(3000, 6, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        order = batch[0].argsort(1)
        return F.cross_entropy(net(batch[0], order).flatten(0, 1), order.flatten())

    limits = {"limit_train_batches": 45, "gradient_clip_val": 2.0}
    return by_recipe(Pointer(), loss, adam(5e-3), in_batches(64, x), **limits)
