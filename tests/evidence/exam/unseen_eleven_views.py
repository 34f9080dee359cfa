"""Healthy trainings on pictures: no norms, another ink, pieces foreseen, few bits, many views, points, wrong labels."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.unseen_eight_tables import WELL, mlp, sgd
from tests.evidence.exam.unseen_eight_wiring import convolutions, tells
from tests.evidence.exam.unseen_nine_pictures import warmed


class Fixed(nn.Module):
    """A block of Fixup: no norms, a second convolution of zeros, single numbers as biases and as a scale."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.biases, self.scale = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(()))
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        nn.init.kaiming_normal_(self.first.weight)
        self.first.weight.data.mul_(blocks**-0.5)
        nn.init.zeros_(self.second.weight)

    def forward(self, x: Tensor) -> Tensor:
        before, within, between, after = self.biases
        hidden = (self.first(x + before) + within).relu()
        return (x + self.scale * self.second(hidden + between) + after).relu()


@healthy("torch", "Fixup: a ResNet of eight blocks without norms, whose branches and head begin at zero; SGD, warm-up and cosine")
def digits_without_norms() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), *(Fixed(16, 8) for _ in range(8)))
    net.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)])
    for weight in net[-1].parameters():
        nn.init.zeros_(weight)

    def optimizers(module: Any) -> Any:
        single = [weight for weight in module.parameters() if weight.dim() < 2 and weight.numel() < 5]
        many = [weight for weight in module.parameters() if weight.dim() > 1 or weight.numel() > 4]
        groups = [{"params": many}, {"params": single, "lr": 0.01, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, 0.1, 0.9, weight_decay=5e-4)

    return Built(Recipe(net, tells, warmed(optimizers, 224)), in_batches(32, *digits(12)), {"max_epochs": 4}, WELL)


class Reversed(torch.autograd.Function):
    """Lets values pass, and turns gradients around."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float) -> Tensor:
        ctx.share = share
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return -ctx.share * gradients[0], None


class AnyInk(Recipe):
    """DANN: digits are told apart by features from which nobody can tell which of two inks they are written in."""

    def __init__(self, batches: int) -> None:
        nets = nn.ModuleDict({"body": convolutions(), "digit": nn.Linear(64, 10), "ink": mlp(64, 32, 1)})
        super().__init__(nets, None, lambda module: torch.optim.SGD(module.parameters(), 0.005, 0.9))
        self.batches = batches

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, shown, others = batch
        share = 2 / (1 + math.exp(-10 * self.global_step / self.batches)) - 1
        found = self.net["body"](torch.cat([images, others]))
        told = self.net["ink"](Reversed.apply(found, 0.3 * share))[:, 0]
        ink = torch.cat([torch.zeros(len(images)), torch.ones(len(others))])
        wrong = F.cross_entropy(self.net["digit"](found[: len(images)]), shown)
        return wrong + F.binary_cross_entropy_with_logits(told, ink)


@healthy("torch", "DANN: labels of thin digits, thick and noisy ones without labels, a gradient that is reversed ever more; SGD")
def digits_of_another_ink() -> Built:
    images, shown = digits(16)
    generator = torch.Generator().manual_seed(0)
    others = F.max_pool2d(images[torch.randperm(len(images), generator=generator)], 3, 1, 1)
    others = others + 0.3 * torch.randn(images.shape, generator=generator)
    return Built(AnyInk(280), in_batches(32, images, shown, others), {"max_epochs": 5}, WELL)


class Pieces(nn.Module):
    """A transformer over some of sixteen pieces of a picture."""

    def __init__(self, inputs: int, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.first, self.positions = nn.Linear(inputs, width), nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, pieces: Tensor, places: Tensor) -> Tensor:
        return self.body(self.first(pieces) + self.positions[places])


class ForeseesCodes(Recipe):
    """I-JEPA: from some pieces it is foreseen what a slow copy, which sees all, makes of others."""

    def __init__(self) -> None:
        quick, guess = Pieces(16), Pieces(48, layers=1)
        nets = nn.ModuleDict({"quick": quick, "guess": guess, "slow": copy.deepcopy(quick).requires_grad_(False)})
        super().__init__(nets, None, warmed(self.with_decay, 336, 40))
        self.hidden = nn.Parameter(0.02 * torch.randn(48))

    @staticmethod
    def with_decay(module: Any) -> Any:
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        return torch.optim.AdamW(weights, 2e-3, weight_decay=0.04)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        pieces = batch[0].unfold(2, 4, 4).unfold(3, 4, 4).flatten(1, 3).flatten(2)
        order = torch.randperm(16)
        seen, wanted = order[:10], order[10:14]
        with torch.no_grad():
            goal = F.layer_norm(self.net["slow"](pieces, torch.arange(16))[:, wanted], (48,))
        known = self.net["quick"](pieces[:, seen], seen)
        asked = self.hidden.expand(len(pieces), 4, -1)
        told = self.net["guess"](torch.cat([known, asked], 1), torch.cat([seen, wanted]))[:, 10:]
        return F.smooth_l1_loss(told, goal)

    def on_train_batch_end(self, *_: Any) -> None:
        with torch.no_grad():
            for slow, quick in zip(self.net["slow"].parameters(), self.net["quick"].parameters(), strict=True):
                slow.lerp_(quick, 0.01)


@healthy("torch", "I-JEPA by hand: codes of hidden pieces are foreseen, a slow copy makes them, so that the goal moves; AdamW")
def digits_foreseen_in_pieces() -> Built:
    return Built(ForeseesCodes(), in_batches(32, digits(16)[0].contiguous()), {"max_epochs": 6}, WELL)


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


@healthy("torch", "LSQ: convolutions of four bits by straight-through, steps that learn with a scaled gradient; SGD, a cosine")
def digits_by_learned_steps() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    for before, after in ((16, 24), (24, 32)):
        net.extend([FewBits(before, after, 2), nn.BatchNorm2d(after), nn.ReLU()])
    net.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10)])
    module = Recipe(net, tells, warmed(sgd(0.05, weight_decay=1e-4), 280))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


def near_its_kind(net: Any, batch: Any) -> Tensor:
    """SupCon: of two noisy views of each, those of the same kind are near, all others far."""
    images, shown = batch
    seen = [images.roll(torch.randint(-1, 2, (2,)).tolist(), (2, 3)) + 0.3 * torch.randn_like(images) for _ in range(2)]
    codes, kinds = F.normalize(net(torch.cat(seen)), dim=1), shown.repeat(2)
    itself = torch.eye(len(codes), dtype=torch.bool)
    scores = (codes @ codes.T / 0.1).masked_fill(itself, -1e9)
    same = (kinds[:, None] == kinds) & ~itself
    return -(scores.log_softmax(1) * same).sum(1).div(same.sum(1)).mean()


@healthy("torch", "supervised contrast: two views of each digit near all of its kind, temperature 0.1, a projector; SGD, warm-up")
def digits_near_their_kind() -> Built:
    net = convolutions().extend([nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)])
    module = Recipe(net, near_its_kind, warmed(sgd(0.1, weight_decay=1e-4), 196))
    return Built(module, in_batches(64, *digits(16)), {"max_epochs": 7}, WELL)


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


@healthy("torch", "a ConvMixer under schedule-free AdamW by hand: the rate never falls, weights lie between two sequences")
def digits_without_schedule() -> Built:
    net = nn.Sequential(nn.Conv2d(1, 32, 2, 2), nn.GELU(), nn.BatchNorm2d(32), *(Across(32) for _ in range(3)))
    net.extend([nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)])
    module = Recipe(net, tells, lambda module: ScheduleFree(module.parameters(), 5e-3))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 5}, WELL)


class Points(nn.Module):
    """PointNet: a small net turns the points, which begins with the identity; each point alone, then the largest value."""

    def __init__(self) -> None:
        super().__init__()
        self.turns, self.angles, self.each = self.alone(2, 32, 64), nn.Linear(64, 4), self.alone(2, 48, 48, 128)
        self.head = nn.Sequential(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
        nn.init.zeros_(self.angles.weight)
        self.angles.bias.data.copy_(torch.eye(2).flatten())

    @staticmethod
    def alone(*sizes: int) -> nn.Sequential:
        net = nn.Sequential()
        for before, after in itertools.pairwise(sizes):
            net.extend([nn.Conv1d(before, after, 1), nn.BatchNorm1d(after), nn.ReLU()])
        return net

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        matrix = self.angles(self.turns(points).amax(2)).unflatten(1, (2, 2))
        return self.head(self.each(matrix @ points).amax(2)), matrix


@healthy("torch", "PointNet: digits as forty points without an order, a matrix that begins as the identity and stays near a turn")
def digits_as_points() -> Built:
    images, shown = digits(8)
    inks = (images - images.min()).flatten(1)
    chosen = torch.multinomial(inks, 40, replacement=True, generator=torch.Generator().manual_seed(0))
    places = torch.stack([chosen % 8, chosen // 8], 1).float()
    points = (places + torch.rand(places.shape, generator=torch.Generator().manual_seed(1)) - 4) / 4

    def loss(net: Any, batch: Any) -> Tensor:
        told, matrix = net(batch[0])
        away = (matrix @ matrix.transpose(1, 2) - torch.eye(2)).square().sum((1, 2)).mean()
        return F.cross_entropy(told, batch[1]) + 1e-3 * away

    def halves(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 3e-3)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 3, 0.5)]

    return Built(Recipe(Points(), loss, halves), in_batches(32, points, shown), {"max_epochs": 7}, WELL)


@healthy("torch", "a third of the labels is wrong, and stays so: a generalised cross-entropy that large errors hardly move; SGD")
def digits_of_which_some_lie() -> Built:
    images, shown = digits(8)
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(len(shown), generator=generator) < 0.33
    labels = torch.where(wrong, torch.randint(0, 10, shown.shape, generator=generator), shown)

    def loss(net: Any, batch: Any) -> Tensor:
        chance = net(batch[0]).softmax(1).gather(1, batch[1][:, None])
        return ((1 - chance**0.7) / 0.7).mean()

    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())
    module = Recipe(net.append(nn.Linear(64, 10)), loss, warmed(sgd(0.1, weight_decay=1e-3), 336, 10))
    return Built(module, in_batches(32, images.flatten(1), labels), {"max_epochs": 6}, WELL)
