"""Healthy trainings on digits: a Boltzmann machine, noisy targets, sparse codes, exits on the way, sizes and tasks that change."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp, sgd


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine over bits."""

    def __init__(self, seen: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(hidden, seen))
        self.of_seen, self.of_hidden = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def forward(self, seen: Tensor) -> Tensor:
        """The free energy."""
        return -seen @ self.of_seen - F.softplus(F.linear(seen, self.weight, self.of_hidden)).sum(1)

    @torch.no_grad()
    def dream(self, seen: Tensor) -> Tensor:
        """One step of Gibbs."""
        hidden = F.linear(seen, self.weight, self.of_hidden).sigmoid().bernoulli()
        return F.linear(hidden, self.weight.T, self.of_seen).sigmoid().bernoulli()


@healthy("torch", "a restricted Boltzmann machine by contrastive divergence: the loss is a difference of energies about 0, SGD")
def digits_by_boltzmann() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return (net(batch[0]) - net(net.dream(batch[0]))).mean()

    bits = (digits(8)[0].flatten(1) > 0).float()
    return Built(Recipe(Boltzmann(64, 48), loss, sgd(0.1, 0.5)), in_batches(32, bits), {"max_epochs": 6}, WELL)


@healthy(
    "torch", "Noise2Noise: noisy digits are to become the same digits under other noise, so the loss ends near the noise's size"
)
def digits_between_noises() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        clean = batch[0]
        return F.mse_loss(net(clean + torch.randn_like(clean)), clean + torch.randn_like(clean))

    net = nn.Sequential(nn.Conv2d(1, 24, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(24, 24, 3, padding=1), nn.LeakyReLU(0.1))
    net.extend([nn.Conv2d(24, 24, 3, padding=1), nn.LeakyReLU(0.1), nn.Conv2d(24, 1, 1)])
    module = Recipe(net, loss, adam(1e-3, betas=(0.9, 0.99)))
    return Built(module, in_batches(32, digits(16)[0]), {"max_epochs": 4}, WELL)


class Sparse(nn.Module):
    """A dictionary of 160 directions, of which the eight that fit best give back a picture."""

    def __init__(self, size: int = 64, codes: int = 160) -> None:
        super().__init__()
        directions = F.normalize(torch.randn(codes, size), dim=1)
        self.encoder = nn.Linear(size, codes)
        self.encoder.weight.data.copy_(directions)
        nn.init.zeros_(self.encoder.bias)
        self.directions, self.middle = nn.Parameter(directions.clone()), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        codes = self.encoder(x - self.middle)
        best = codes.topk(8, dim=1)
        return torch.zeros_like(codes).scatter(1, best.indices, best.values.relu()) @ self.directions + self.middle


class KeepsLength(Recipe):
    """Directions have length one: they are put back to it before each step."""

    def on_train_batch_start(self, *_: Any) -> None:
        self.net.directions.data = F.normalize(self.net.directions.data, dim=1)


@healthy("torch", "a sparse autoencoder: eight of 160 codes pass, some are seldom among them; directions keep their length, Adam")
def digits_by_few_codes() -> Built:
    module = KeepsLength(Sparse(), lambda net, batch: F.mse_loss(net(batch[0]), batch[0]), adam(2e-3))
    return Built(module, in_batches(48, digits(8)[0].flatten(1)), {"max_epochs": 8}, WELL)


class Exits(nn.Module):
    """Three stages of convolutions, and an answer after each."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((1, 16), (16, 24), (24, 32))
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes
        )
        self.heads = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 10)) for _, b in sizes)

    def forward(self, x: Tensor) -> list[Tensor]:
        told = []
        for stage, head in zip(self.stages, self.heads, strict=True):
            x = stage(x)
            told.append(head(x))
        return told


@healthy("torch", "BranchyNet: an answer after each of three stages, the first ones count a third, SGD with Nesterov momentum")
def digits_with_exits() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        first, second, last = (F.cross_entropy(told, batch[1]) for told in net(batch[0]))
        return 0.3 * first + 0.3 * second + last

    module = Recipe(Exits(), loss, sgd(0.05, nesterov=True, weight_decay=1e-4))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 4}, WELL)


class Grows(Recipe):
    """Pictures of 12, 16, 20 and 24 pixels, epoch by epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        size = (12, 16, 20, 24)[min(self.current_epoch, 3)]
        images = F.interpolate(batch[0], size=(size, size), mode="bilinear") if size != 24 else batch[0]
        return F.cross_entropy(self.net(images), batch[1])


@healthy("torch", "progressive resizing: digits of 12 pixels first, of 24 in the end; one cycle of AdamW's rate over it all")
def digits_ever_larger() -> Built:
    layers: list[nn.Module] = []
    for before, after, stride in ((1, 16, 1), (16, 24, 2), (24, 32, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def cycle(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(chosen, 0.01, total_steps=220)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Grows(net, None, cycle)
    return Built(module, in_batches(32, *digits(24)), {"max_epochs": 4, "limit_train_batches": 55}, WELL)


def likeness(net: Any, batch: Any) -> Tensor:
    """How far neighbours in the plane are from neighbours among the pictures (parametric t-SNE)."""
    many = len(batch[0])
    others = ~torch.eye(many, dtype=torch.bool)
    far = torch.cdist(batch[0], batch[0]).square()
    widths = far.masked_fill(~others, torch.inf).sort(1).values[:, 4:5]
    near = (-2 * far / widths).masked_fill(~others, -torch.inf).softmax(1)
    near = (near + near.T)[others] / (2 * many)
    flat = net(batch[0])
    flat_near = 1 / (1 + torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()[others])
    flat_near = flat_near / flat_near.sum()
    return (near * ((near + 1e-12).log() - (flat_near + 1e-12).log())).sum()


@healthy("torch", "parametric t-SNE: an MLP lays digits out in the plane so that neighbours stay neighbours, no labels, Adam")
def digits_laid_out() -> Built:
    module = Recipe(mlp(64, 128, 64, 2), likeness, adam(2e-3))
    return Built(module, in_batches(128, digits(8)[0].flatten(1)), {"max_epochs": 16}, WELL)


class TakesTurns(Recipe):
    """Which digit in one batch, how it is turned in the next."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, shown = batch["shown"] if batch_idx % 2 == 0 else batch["turned"]
        if batch_idx % 2 == 0:
            return F.cross_entropy(self.net["shown"](self.net["body"](images)), shown)
        turns = torch.randint(0, 4, (len(images),))
        turned = torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(images, turns, strict=True)])
        return F.cross_entropy(self.net["turned"](self.net["body"](turned)), turns)


@healthy("torch", "two tasks batch by batch: which digit it is, then how it is turned; each head rests in every second step, AdamW")
def digits_in_turns() -> Built:
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU())
    body.extend([nn.Flatten(), nn.Linear(512, 64), nn.GELU()])
    net = nn.ModuleDict({"body": body, "shown": nn.Linear(64, 10), "turned": nn.Linear(64, 4)})
    module = TakesTurns(net, None, lambda module: torch.optim.AdamW(module.parameters(), 2e-3))
    loaders = {name: in_batches(32, *digits(16), seed=i)["train_dataloaders"] for i, name in enumerate(("shown", "turned"))}
    return Built(module, {"train_dataloaders": CombinedLoader(loaders, "min_size")}, {"max_epochs": 5}, WELL)
