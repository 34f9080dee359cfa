"""Healthy trainings on signals and experts: quantiles by an LSTM, a state space, experts of a mixture."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.signals import melodies
from tests.evidence.exam.unseen_eight_tables import WELL, mlp, scaled
from tests.evidence.exam.unseen_nine_pictures import warmed

QUANTILES = torch.tensor([0.1, 0.5, 0.9])


class Forecasts(nn.Module):
    """An LSTM over the past, and three quantiles of what comes in each of twelve hours."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(1, width, batch_first=True), nn.Linear(width, 36)
        self.body.bias_ih_l0.data[width : 2 * width] = 1.0

    def forward(self, past: Tensor) -> Tensor:
        return self.head(self.body(past[..., None])[0][:, -1]).unflatten(1, (12, 3))


def demand(count: int = 2000) -> tuple[Tensor, Tensor]:
    """Electricity by the hour: days and weeks, noise that grows with the level; two days, and the twelve hours after them."""
    generator = torch.Generator().manual_seed(0)
    hours = torch.arange(6000.0)
    level = (2 * math.pi * hours / 24).sin() + 0.4 * (2 * math.pi * hours / 168).cos()
    values = scaled((level + (0.1 + 0.1 * level.relu()) * torch.randn(6000, generator=generator))[:, None])[:, 0]
    rows = values.unfold(0, 60, 1)[torch.randperm(5900, generator=generator)[:count]]
    return rows[:, :48], rows[:, 48:]


@healthy("torch", "quantiles of electricity by the pinball loss: an LSTM whose forget gates begin open, RMSprop, accumulation")
def demand_in_quantiles() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        over = batch[1][..., None] - net(batch[0])
        return torch.maximum(QUANTILES * over, (QUANTILES - 1) * over).mean()

    module = Recipe(Forecasts(), loss, lambda module: torch.optim.RMSprop(module.parameters(), 4e-3))
    options = {"max_epochs": 6, "accumulate_grad_batches": 2, "gradient_clip_val": 1.0}
    return Built(module, in_batches(32, *demand()), options, WELL)


@healthy("torch", "which of eight notes are in a sound, several at a time: a focal loss, convolutions, SGD, a cosine")
def notes_by_focal_loss() -> Built:
    net = nn.Sequential(
        nn.Conv1d(1, 24, 40, 8), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 32, 5, 2), nn.BatchNorm1d(32), nn.ReLU()
    )
    net.extend([nn.Conv1d(32, 32, 5, 2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(32, 11)])
    nn.init.constant_(net[-1].bias, -1.5)

    def loss(net: Any, batch: Any) -> Tensor:
        played = F.one_hot(batch[1], 11).amax(1).float()
        told = net(batch[0][:, None])
        missed = F.binary_cross_entropy_with_logits(told, played, reduction="none")
        return ((1 - (-missed).exp()).square() * missed).sum(1).mean()

    def optimizers(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), 0.1, 0.9, weight_decay=1e-4, nesterov=True)

    return Built(Recipe(net, loss, warmed(optimizers, 248)), melodies(32), {"max_epochs": 8}, WELL)


class StateSpace(nn.Module):
    """S4D: each channel is a sum of oscillations that fade, applied as one long convolution."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        steps = torch.rand(width) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)
        self.step = nn.Parameter(steps)
        self.fade = nn.Parameter(torch.full((width, states), 0.5).log())
        self.turn = nn.Parameter(math.pi * torch.arange(states).expand(width, states).clone())
        self.read, self.skip = nn.Parameter(torch.randn(width, states, 2)), nn.Parameter(torch.ones(width))
        self.mix, self.norm = nn.Conv1d(width, 2 * width, 1), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        length, step = x.shape[-1], self.step.exp()[:, None]
        rates = torch.complex(-self.fade.exp(), self.turn) * step
        weights = torch.view_as_complex(self.read) * (rates.exp() - 1) / torch.complex(-self.fade.exp(), self.turn)
        kernel = 2 * torch.einsum("cs,csl->cl", weights, (rates[..., None] * torch.arange(length)).exp()).real
        passed = torch.fft.irfft(torch.fft.rfft(x, 2 * length) * torch.fft.rfft(kernel, 2 * length), 2 * length)[..., :length]
        y = F.glu(self.mix(F.gelu(passed + self.skip[:, None] * x)), 1)
        return self.norm((x + y).transpose(1, 2)).transpose(1, 2)


class Hears(nn.Module):
    """Samples of a sound in groups of eight, state spaces over them, their mean, and a kind for each of three notes."""

    def __init__(self, width: int = 40, layers: int = 2) -> None:
        super().__init__()
        self.first, self.head = nn.Conv1d(1, width, 8, 8), nn.Linear(3 * width, 3 * 11)
        self.layers = nn.Sequential(*(StateSpace(width) for _ in range(layers)))

    def forward(self, sounds: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool1d(self.layers(self.first(sounds[:, None])), 3).flatten(1)).unflatten(1, (3, 11))


@healthy("torch", "a diagonal state space (S4D) hears which notes are played: its own rate for the recurrence, AdamW, a cosine")
def notes_by_state_space() -> Built:
    def optimizers(module: Any) -> Any:
        slow = [weight for name, weight in module.named_parameters() if name.rpartition(".")[2] in ("step", "fade", "turn")]
        inside = {id(weight) for weight in slow}
        others = [weight for weight in module.parameters() if id(weight) not in inside]
        return torch.optim.AdamW([{"params": slow, "lr": 1e-3, "weight_decay": 0.0}, {"params": others}], 6e-3, weight_decay=0.01)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]).flatten(0, 1), batch[1].flatten())

    return Built(Recipe(Hears(), loss, warmed(optimizers, 160)), melodies(32), {"max_epochs": 5}, WELL)


class Experts(nn.Module):
    """A router that sends each row to two of six small nets, with noise while it trains."""

    def __init__(self, columns: int = 6, experts: int = 6) -> None:
        super().__init__()
        self.router = nn.Linear(columns, experts)
        self.experts = nn.ModuleList(mlp(columns, 32, 1, activation=nn.SiLU) for _ in range(experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.router(x)
        if self.training:
            scores = scores + 0.3 * torch.randn_like(scores)
        best = scores.topk(2, dim=1)
        shares = torch.zeros_like(scores).scatter(1, best.indices, best.values.softmax(1))
        told = torch.cat([expert(x) for expert in self.experts], 1)
        balance = (scores.softmax(1).mean(0) * (shares > 0).float().mean(0)).sum() * scores.shape[1] / 2
        return (shares * told).sum(1), balance


@healthy("torch", "a mixture of six experts, two a row, noise in the router and a loss for balance, for four regimes")
def regimes_by_experts() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5000, 6, generator=generator)
    regime = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    slopes = torch.randn(4, 4, generator=generator)
    y = (slopes[regime] * x[:, 2:]).sum(1) + torch.tensor([2.0, -1.0, 0.0, 1.0])[regime]

    def loss(net: Any, batch: Any) -> Tensor:
        told, balance = net(batch[0])
        return F.mse_loss(told, batch[1]) + 0.02 * balance

    module = Recipe(Experts(), loss, lambda module: torch.optim.AdamW(module.parameters(), 8e-3, weight_decay=1e-3))
    return Built(module, in_batches(64, x, scaled(y[:, None])[:, 0]), {"max_epochs": 5}, WELL)
