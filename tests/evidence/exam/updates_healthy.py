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


class Reptile(ByHand):
    """Each task moves a copy of the net for some steps, and the net goes a part of the way after it."""

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
