"""Unusual ways to train: local losses, private gradients, pruning, attacks, several learners, learning to learn."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import prune

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.loops import ByHand, Private
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import adam, scheduled, sgd
from tests.evidence.exam.small_nets import Judged, by_recipe, mlp, small_cnn, to_classes
from tests.evidence.exam.tables import split, table


@healthy("torch", "MAML: sines from ten examples after one step of 0.01 inside the loss, gradients of gradients, Adam")
def recipe_meta() -> Built:
    net = mlp(1, 40, 40, 1, activation=nn.Tanh)

    def loss(net: Any, batch: Any) -> Tensor:
        lost = []
        for height, phase in batch[0]:
            x = 10 * torch.rand(20, 1) - 5
            y = height * torch.sin(x + phase)
            with torch.enable_grad():
                known = dict(net.named_parameters())
                first = F.mse_loss(functional_call(net, known, (x[:10],)), y[:10])
                slopes = torch.autograd.grad(first, list(known.values()), create_graph=True)
                moved = {name: value - 0.01 * slope for (name, value), slope in zip(known.items(), slopes, strict=True)}
                lost.append(F.mse_loss(functional_call(net, moved, (x[10:],)), y[10:]))
        return torch.stack(lost).mean()

    generator = torch.Generator().manual_seed(0)
    tasks = torch.rand(1120, 2, generator=generator) * torch.tensor([4.9, math.pi]) + torch.tensor([0.1, 0.0])
    return by_recipe(net, loss, adam(2e-3), in_batches(16, tasks), max_epochs=1, limit_train_batches=70)


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


class NetOfNets(nn.Module):
    """From a few points of a curve to the weights of a small net that goes on with it."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width, self.code = width, mlp(20, 96, 96, activation=nn.GELU)
        self.heads = nn.ModuleList(nn.Linear(96, size) for size in (2 * width, width * width + width, width + 1))
        for head in self.heads:
            nn.init.normal_(head.weight, std=0.02)

    def forward(self, points: Tensor, x: Tensor) -> Tensor:
        first, second, last = (head(F.gelu(self.code(points))) for head in self.heads)
        w = self.width
        hidden = torch.sin(x[..., None] * (1 + first[:, None, :w]) + first[:, None, w:])
        hidden = torch.tanh(hidden @ second[:, : w * w].view(-1, w, w) + second[:, None, w * w :])
        return (hidden * last[:, None, :w]).sum(-1) + last[:, None, w]


@healthy("torch", "a hypernetwork: ten points of a wave become the weights of a small net that draws the wave, Adam, clipped at 1")
def waves_by_hypernetwork() -> Built:
    generator = torch.Generator().manual_seed(0)
    heights, shifts = 0.5 + torch.rand(3000, 1, generator=generator), 3 * torch.rand(3000, 1, generator=generator)
    x = torch.cat([torch.linspace(-2, 2, 10).expand(3000, 10), 4 * torch.rand(3000, 20, generator=generator) - 2], 1)
    y = heights * torch.sin(2 * x + shifts)

    def loss(net: Any, batch: Any) -> Tensor:
        x, y = batch
        return F.mse_loss(net(torch.cat([x[:, :10], y[:, :10]], 1), x[:, 10:]), y[:, 10:])

    data = in_batches(32, x, y)
    return Built(Recipe(NetOfNets(), loss, adam(2e-3)), data, {"max_epochs": 4, "gradient_clip_val": 1.0}, WELL)


class Goodness(nn.Module):
    """Layers that each tell right labels from wrong ones by the squares of their outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(74, 128), nn.Linear(128, 128)])

    def forward(self, right: Tensor, wrong: Tensor) -> Tensor:
        total = torch.zeros(())
        for layer in self.layers:
            right, wrong = (F.relu(layer(F.normalize(x, dim=1) * 8)) for x in (right.detach(), wrong.detach()))
            more, less = right.square().mean(1) - 2, 2 - wrong.square().mean(1)
            total = total + F.softplus(-torch.cat((more, less))).mean()
        return total


@healthy("torch", "forward-forward: each layer has a loss of its own for right and wrong labels, nothing goes back between them")
def digits_forward_forward() -> Built:
    x, y = digits(8)

    def loss(net: Any, batch: Any) -> Tensor:
        other = (batch[1] + torch.randint(1, 10, batch[1].shape)) % 10
        both = [torch.cat((F.one_hot(labels, 10).float() * 3, batch[0]), 1) for labels in (batch[1], other)]
        return net(*both)

    return Built(Recipe(Goodness(), loss, adam(3e-3)), in_batches(64, x.flatten(1), y), {"max_epochs": 10}, Expected())


@healthy("torch", "tumours under differential privacy: each sample's gradient is cut at 1, noise is added, SGD")
def tumours_in_private() -> Built:
    module = Private(mlp(30, 24, 2, activation=nn.Tanh), to_classes, sgd(0.3, 0.5))
    return Built(module, in_batches(64, *table("breast_cancer")), {"max_epochs": 20}, Expected())


class Pruned(Judged):
    """After each epoch the smallest third of the weights that are left is cut away."""

    def on_train_epoch_end(self) -> None:
        if self.current_epoch < 3:
            for layer in self.net:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    prune.l1_unstructured(layer, "weight", amount=0.33)


@healthy("torch", "iterative pruning by size: after each of three epochs a third of the weights left is masked, SGD with a cosine")
def digits_pruned() -> Built:
    optimizers = scheduled(sgd(0.05), lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 224))
    return Built(Pruned(small_cnn(), to_classes, optimizers), split(32, *digits(16)), {"max_epochs": 5}, Expected())


@healthy(
    "torch", "FixMatch: few labels, and sure guesses of shifted pictures are labels for noisier ones, SGD with Nesterov momentum"
)
def digits_fixmatch() -> Built:
    x, y = digits(16)

    def changed(images: Tensor, noise: float) -> Tensor:
        shift = torch.randint(-1, 2, (2,)).tolist()
        return images.roll(shift, (2, 3)) + noise * torch.randn_like(images)

    def loss(net: Any, batch: Any) -> Tensor:
        known = torch.randint(200, (16,))
        weak, strong = changed(batch[0], 0.05), changed(batch[0], 0.6)
        told = net(torch.cat((x[known], weak, strong)))
        of_known, of_weak, of_strong = told.split((16, len(weak), len(strong)))
        sure, guess = of_weak.detach().softmax(1).max(1)
        unknown = (F.cross_entropy(of_strong, guess, reduction="none") * (sure > 0.9)).mean()
        return F.cross_entropy(of_known, y[known]) + unknown

    module = Recipe(small_cnn(), loss, sgd(0.03, nesterov=True, weight_decay=5e-4))
    return Built(module, in_batches(48, x[200:]), {"max_epochs": 6}, Expected())


class InTurn(Recipe):
    """Digits below five for two epochs, then those above, while weights that counted are held (EWC)."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.before: dict[str, tuple[Tensor, Tensor]] = {}

    def on_train_epoch_start(self) -> None:
        if self.current_epoch != 3:
            return
        x, y = digits(8)
        chosen = (y < 5).nonzero()[:256, 0]
        F.cross_entropy(self.net(x[chosen].flatten(1)), y[chosen]).backward()
        for name, value in self.net.named_parameters():
            assert value.grad is not None
            self.before[name] = (value.detach().clone(), value.grad.square() * 256)
        self.net.zero_grad()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        low = batch[1] < 5
        chosen = low if not self.before else ~low
        held = torch.zeros(())
        for name, value in self.net.named_parameters():
            if name in self.before:
                held = held + (self.before[name][1] * (value - self.before[name][0]).square()).sum()
        return F.cross_entropy(self.net(batch[0][chosen]), batch[1][chosen]) + 10 * held


@healthy(
    "torch", "elastic weight consolidation: digits below five for three epochs, then those above, SGD; the loss leaps in between"
)
def digits_in_two_tasks() -> Built:
    x, y = digits(8)
    return Built(InTurn(mlp(64, 96, 10), None, sgd(0.02)), in_batches(64, x.flatten(1), y), {"max_epochs": 8}, Expected())


class Attacked(Recipe):
    """Each picture is first changed against the net, in three steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, shown = batch
        moved = 0.08 * (2 * torch.rand_like(images) - 1)
        for _ in range(3):
            moved.requires_grad_()
            slope = torch.autograd.grad(F.cross_entropy(self.net(images + moved), shown), moved)[0]
            moved = (moved.detach() + 0.04 * slope.sign()).clamp(-0.08, 0.08)
        return F.cross_entropy(self.net(images + moved.detach()), shown)


@healthy(
    "torch", "adversarial training: three projected steps against the net before each of its own, SGD with two drops of the rate"
)
def digits_under_attack() -> Built:
    optimizers = scheduled(sgd(0.03), lambda chosen: torch.optim.lr_scheduler.MultiStepLR(chosen, [200, 250]))
    return Built(Attacked(small_cnn(12), to_classes, optimizers), pictures(32, 16), {"max_epochs": 5}, Expected())


class Taught(Recipe):
    """Two nets: each learns from the samples that the other finds easiest (co-teaching)."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        kept = int(len(batch[0]) * (1 - 0.35 * min(1.0, self.global_step / 100)))
        losses = [F.cross_entropy(net(batch[0]), batch[1], reduction="none") for net in self.net]
        easy = [each.detach().argsort()[:kept] for each in losses]
        return losses[0][easy[1]].mean() + losses[1][easy[0]].mean()


@healthy("torch", "co-teaching: a third of the labels is wrong, two nets choose the easy samples for each other, ever fewer")
def digits_co_teaching() -> Built:
    x, y = digits(8)
    generator = torch.Generator().manual_seed(0)
    wrong = torch.rand(y.shape, generator=generator) < 0.35
    labels = torch.where(wrong, torch.randint(10, y.shape, generator=generator), y)
    nets = nn.ModuleList([mlp(64, 96, 10), mlp(64, 96, 10)])
    return Built(Taught(nets, None, adam(2e-3)), in_batches(64, x.flatten(1), labels), {"max_epochs": 8}, Expected())


class Surgery(ByHand):
    """Two tasks: where their gradients point against each other, each loses that part (PCGrad)."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        told = self.net(batch[0])
        losses = (F.cross_entropy(told[:, :10], batch[1]), F.mse_loss(told[:, 10], batch[0].flatten(1).std(1)))
        weights = list(self.net.parameters())
        slopes = [torch.autograd.grad(loss, weights, retain_graph=True) for loss in losses]
        first, second = (torch.cat([each.flatten() for each in slope]) for slope in slopes)
        dot = torch.minimum(first @ second, torch.zeros(()))
        total = first - dot / second.square().sum() * second + second - dot / first.square().sum() * first
        for weight, part in zip(weights, total.split([weight.numel() for weight in weights]), strict=True):
            weight.grad = part.view_as(weight)
        chosen.step()
        return {"loss": sum(losses).detach()}


@healthy("torch", "which digit and how much contrast: gradients that point against each other lose that part (PCGrad), Adam")
def digits_gradient_surgery() -> Built:
    return Built(Surgery(small_cnn(outputs=11), None, adam(3e-3)), pictures(32, 16), {"max_epochs": 3}, Expected())


class Averaging(Judged):
    """Lightning's own averaging of weights, from the half of the training on."""

    def configure_callbacks(self) -> Any:
        return [StochasticWeightAveraging(0.02, swa_epoch_start=3, annealing_epochs=1)]


@healthy("torch", "stochastic weight averaging by Lightning's callback from the fourth of six epochs on, batch norm, SGD")
def digits_averaged_weights() -> Built:
    return Built(Averaging(small_cnn(), to_classes, sgd(0.05)), split(32, *digits(16)), {"max_epochs": 6}, Expected())


class Langevin(torch.optim.SGD):
    """Noise of the size of the step beside each step: weights are drawn from their posterior."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for value in group["params"]:
                value.add_(torch.randn_like(value), alpha=(2 * group["lr"] * 1e-5) ** 0.5)
        return loss


@healthy("torch", "stochastic gradient Langevin dynamics: noise after each step, a rate that falls by a power, kinds of wine")
def wine_by_langevin() -> Built:
    def optimizers(module: Any) -> Any:
        return Langevin(module.parameters(), lr=0.1, weight_decay=1e-3)

    falling = scheduled(optimizers, lambda chosen: torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: (1 + step / 50) ** -0.55))
    return Built(
        Judged(mlp(13, 16, 3, activation=nn.Tanh), to_classes, falling), split(16, *table("wine")), {"max_epochs": 25}, Expected()
    )
