"""Nets of papers for series and sequences: linear and fixed recurrences, point processes, CTC, random fields, groups of texts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, scheduled, warmed
from tests.evidence.exam.signals import strips
from tests.evidence.exam.small_nets import Judged, Strip, connectionist, to_classes
from tests.evidence.exam.tables import split


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
