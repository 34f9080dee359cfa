"""Healthy trainings in ways of their own: local losses, noise for privacy, pruning, two tasks in turn, pixels that learn."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.callbacks import StochasticWeightAveraging
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, Dataset

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import adamw, scheduled
from tests.evidence.exam.signals import crops
from tests.evidence.exam.texts import batches
from tests.evidence.exam.unseen_seven_parts import ByHand, Scored, adam, halves, mlp, sgd, small_cnn, table, to_classes


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


class Private(ByHand):
    """The gradient of each sample is cut at norm 1, then noise is added."""

    noise = 0.6

    def before_step(self, batch: Any) -> None:
        weights = {name: value.detach() for name, value in self.net.named_parameters()}

        def of_one(values: Any, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.net, values, (x[None],)), y[None])

        found = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, batch[0], batch[1])
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in found.values()]).norm(dim=0)
        share = (1 / norms.clamp_min(1e-6)).clamp_max(1.0)
        for name, value in self.net.named_parameters():
            summed = torch.einsum("n,n...->...", share, found[name])
            value.grad = (summed + self.noise * torch.randn_like(summed)) / len(batch[0])


@healthy("torch", "tumours under differential privacy: each sample's gradient is cut at 1, noise is added, SGD")
def tumours_in_private() -> Built:
    module = Private(mlp(30, 24, 2, act=nn.Tanh), to_classes, sgd(0.3, 0.5))
    return Built(module, batches(64, *table("breast_cancer")), {"max_epochs": 20}, Expected())


class Pruned(Scored):
    """After each epoch the smallest third of the weights that are left is cut away."""

    def on_train_epoch_end(self) -> None:
        if self.current_epoch < 3:
            for layer in self.net:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    prune.l1_unstructured(layer, "weight", amount=0.33)


@healthy("torch", "iterative pruning by size: after each of three epochs a third of the weights left is masked, SGD with a cosine")
def digits_pruned() -> Built:
    optimizers = scheduled(sgd(0.05), lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 224))
    return Built(Pruned(small_cnn(), to_classes, optimizers), halves(32, *digits(16)), {"max_epochs": 5}, Expected())


class Signs(nn.Linear):
    """The signs of the weights are used, the weights learn by way of them."""

    def forward(self, x: Tensor) -> Tensor:
        used = self.weight + (self.weight.sign() - self.weight).detach()
        return F.linear(x, used / self.in_features**0.5)


class Binary(Recipe):
    """Keeps the weights behind signs between -1 and 1."""

    def on_train_batch_end(self, *_: Any) -> None:
        for layer in self.net:
            if isinstance(layer, Signs):
                layer.weight.data.clamp_(-1, 1)


@healthy(
    "torch", "BinaryConnect: signs of weights in the forward pass, weights cut to one after each step, batch norm, Adam decays"
)
def digits_binary_connect() -> Built:
    sizes = ((64, 96), (96, 96), (96, 10))
    net = nn.Sequential(*[part for a, b in sizes for part in (Signs(a, b, bias=False), nn.BatchNorm1d(b), nn.Hardtanh())][:-1])
    x, y = digits(8)
    optimizers = scheduled(adam(3e-3), lambda chosen: torch.optim.lr_scheduler.ExponentialLR(chosen, 0.7), "epoch")
    return Built(Binary(net, to_classes, optimizers), in_batches(32, x.flatten(1), y), {"max_epochs": 5}, Expected())


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


class Averaging(Scored):
    """Lightning's own averaging of weights, from the half of the training on."""

    def configure_callbacks(self) -> Any:
        return [StochasticWeightAveraging(0.02, swa_epoch_start=3, annealing_epochs=1)]


@healthy("torch", "stochastic weight averaging by Lightning's callback from the fourth of six epochs on, batch norm, SGD")
def digits_averaged_weights() -> Built:
    return Built(Averaging(small_cnn(), to_classes, sgd(0.05)), halves(32, *digits(16)), {"max_epochs": 6}, Expected())


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
        Scored(mlp(13, 16, 3, act=nn.Tanh), to_classes, falling), halves(16, *table("wine")), {"max_epochs": 25}, Expected()
    )


class One(Dataset[tuple[Tensor, Tensor]]):
    """One sample, many times an epoch."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return self.tensors


@healthy("torch", "deep image prior: one noisy photograph from one fixed noise, the same batch at every step, Adam at 0.01")
def photograph_by_image_prior() -> Built:
    pieces = next(iter(crops(32, 1)["train_dataloaders"]))[0][0]
    torch.manual_seed(0)
    seen, given = pieces + 0.3 * torch.randn_like(pieces), 0.1 * torch.randn(16, 8, 8)

    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Upsample(scale_factor=2), nn.Conv2d(before, after, 3, 1, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]

    net = nn.Sequential(*block(16, 24), *block(24, 24), nn.Conv2d(24, 3, 1))
    module = Recipe(net, lambda net, batch: F.mse_loss(net(batch[0] + 0.03 * torch.randn_like(batch[0])), batch[1]), adam(0.01))
    return Built(module, {"train_dataloaders": DataLoader(One(given, seen), 1)}, {"max_epochs": 2}, Expected())


class Painted(nn.Module):
    """A picture that learns, and a fixed net that looks at it."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.picture = nn.Parameter(start.clone())
        eyes = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.eyes = nn.Sequential(*eyes).requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.eyes(images)
        rows = seen.flatten(2)
        return seen, rows @ rows.transpose(1, 2) / rows.shape[-1]


@healthy("torch", "style transfer: the pixels of one picture are all that learns, before a fixed net; Gram matrices, Adam at 0.05")
def pixels_take_a_style() -> Built:
    torch.manual_seed(1)
    both = torch.stack([batch[0][0] for batch, _ in zip(crops(32, 1)["train_dataloaders"], range(2), strict=False)])

    def loss(net: Any, batch: Any) -> Tensor:
        (of_content, _), (_, of_style), (content, style) = net(batch[0]), net(batch[1]), net(net.picture)
        smooth = (net.picture[..., 1:] - net.picture[..., :-1]).abs().mean()
        return F.mse_loss(content, of_content) + 10 * F.mse_loss(style, of_style) + 0.01 * smooth

    net = Painted(torch.randn(1, 3, 32, 32))
    optimizers = adamw(0.05, 0.0)
    return Built(
        Recipe(net, loss, optimizers), {"train_dataloaders": DataLoader(One(both[0], both[1]), 1)}, {"max_epochs": 2}, Expected()
    )
