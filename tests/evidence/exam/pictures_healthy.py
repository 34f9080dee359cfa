"""Nets of papers that see pictures in an unusual way: capsules, peaks, points, exits, fixed points, four bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, sgd, warmed
from tests.evidence.exam.small_nets import Judged, to_classes
from tests.evidence.exam.tables import split


class FewBits(nn.Conv2d):
    """A convolution of LSQ: weights and inputs are whole numbers of four bits, times steps that learn."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__(before, after, 3, stride, 1, bias=False)
        self.of_weights = nn.Parameter(2 * self.weight.detach().abs().mean() / 7**0.5)
        self.of_inputs = nn.Parameter(torch.tensor(0.3))

    @staticmethod
    def rounded(x: Tensor, step: Tensor, low: int, high: int) -> Tensor:
        gentle = (x.numel() * high) ** -0.5
        step = step * gentle + (step * (1 - gentle)).detach()
        within = (x / step).clamp(low, high)
        return (within + (within.round() - within).detach()) * step

    def forward(self, x: Tensor) -> Tensor:
        inputs, weight = self.rounded(x, self.of_inputs, 0, 15), self.rounded(self.weight, self.of_weights, -8, 7)
        return F.conv2d(inputs, weight, None, self.stride, self.padding)


@healthy(
    "torch",
    "LSQ: convolutions of four bits by straight-through, steps that learn with a scaled gradient; SGD, a cosine",
    learned_from=False,
)
def digits_by_learned_steps() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    for before, after in ((16, 24), (24, 32)):
        net.extend([FewBits(before, after, 2), nn.BatchNorm2d(after), nn.ReLU()])
    net.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)])
    module = Recipe(net, to_classes, warmed(sgd(0.05, weight_decay=1e-4), 280))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


class ScheduleFree(torch.optim.Optimizer):
    """AdamW without a schedule: gradients are taken between a quick sequence and its running mean, which is what is kept."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), warm: int = 20) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "warm": warm})
        self.many = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.many += 1
        for group in self.param_groups:
            keep, slow = group["betas"]
            rate = group["lr"] * min(1.0, self.many / group["warm"])
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state.update(quick=weight.clone(), mean=weight.clone(), squares=torch.zeros_like(weight))
                state["squares"].mul_(slow).addcmul_(weight.grad, weight.grad, value=1 - slow)
                size = (state["squares"] / (1 - slow**self.many)).sqrt().add_(1e-8)
                state["quick"].addcdiv_(weight.grad, size, value=-rate).sub_(weight, alpha=rate * 0.01)
                state["mean"].lerp_(state["quick"], 1 / self.many)
                weight.copy_(state["quick"].lerp(state["mean"], keep))
        return loss


class Across(nn.Module):
    """ConvMixer's layer: pixels of one channel, beside what was there; then channels of one pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.space = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, groups=width), nn.GELU(), nn.BatchNorm2d(width))
        self.channels = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.channels(x + self.space(x))


@healthy(
    "torch",
    "a ConvMixer under schedule-free AdamW by hand: the rate never falls, weights lie between two sequences",
    learned_from=False,
)
def digits_without_schedule() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 32, 2, 2), nn.GELU(), nn.BatchNorm2d(32), *(Across(32) for _ in range(3)))
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)])
    module = Recipe(net, to_classes, lambda module: ScheduleFree(module.parameters(), 5e-3))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


class Equilibrium(nn.Module):
    """A layer that is applied until nothing changes; the gradient is that of one more step."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.norm, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10)
        nn.init.orthogonal_(self.again.weight, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        given = self.enter(x)
        with torch.no_grad():
            state = torch.zeros_like(given)
            for _ in range(20):
                state = torch.tanh(self.norm(self.again(state) + given))
        return self.head(torch.tanh(self.norm(self.again(state) + given)))


@healthy("torch", "a deep equilibrium layer for digits: twenty steps to the fixed point without a gradient, one with it, Adam")
def digits_by_equilibrium() -> Built:
    x, y = digits(8)
    return Built(Judged(Equilibrium(), to_classes, adam(2e-3)), split(32, x.flatten(1), y), {"max_epochs": 5}, Expected())
