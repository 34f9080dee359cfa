"""Nets that are fields, or that obey equations: places, operators, ordinary and partial differential equations."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adam
from tests.evidence.exam.signals import crops
from tests.evidence.exam.small_nets import by_recipe, mlp


@healthy("torch", "physics-informed net for a Poisson equation with its borders, Adam")
def recipe_physics() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        with torch.enable_grad():
            x = batch[0].requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        residual = bend + math.pi**2 * torch.sin(math.pi * x)
        return residual.square().mean() + net(torch.tensor([[-1.0], [1.0]])).square().mean()

    points = 2 * torch.rand(4000, 1, generator=torch.Generator().manual_seed(0)) - 1
    return by_recipe(
        mlp(1, 32, 32, 1, activation=nn.Tanh), loss, adam(1e-3), in_batches(64, points), max_epochs=5, limit_train_batches=60
    )


class Epidemic(nn.Module):
    """How many are ill from day to day; all that is learned are three numbers."""

    def __init__(self, infects: float, recovers: float, first: float) -> None:
        super().__init__()
        self.infects, self.recovers = nn.Parameter(torch.tensor(infects).log()), nn.Parameter(torch.tensor(recovers).log())
        self.first = nn.Parameter(torch.tensor(first).logit())

    def forward(self, days: int) -> Tensor:
        ill = self.first.sigmoid()
        well, course = 1 - ill, []
        for _ in range(days):
            new, over = self.infects.exp() * well * ill, self.recovers.exp() * ill
            well, ill = well - new, ill + new - over
            course.append(ill)
        return torch.stack(course)


@healthy("torch", "an epidemic's two rates and its beginning, three numbers in all, through forty steps of Euler, Adam at 0.03")
def epidemic_of_three_numbers() -> Built:
    with torch.no_grad():
        course = Epidemic(0.5, 0.15, 0.01)(40)
    seen = course.log() + 0.2 * torch.randn(320, 40, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(40).log().expand_as(batch[0]), batch[0])

    module = Recipe(Epidemic(0.25, 0.05, 0.002), loss, adam(0.03))
    return Built(module, in_batches(16, seen), {"max_epochs": 10}, WELL)


class Hashed(nn.Module):
    """Grids of several widths whose corners share small tables by a hash; a small net reads what lies between corners."""

    def __init__(self, levels: int = 6, size: int = 1024) -> None:
        super().__init__()
        self.widths = [round(6 * 1.6**level) for level in range(levels)]
        self.tables, self.size = nn.ModuleList(nn.Embedding(size, 2) for _ in range(levels)), size
        for table in self.tables:
            nn.init.uniform_(table.weight, -1e-4, 1e-4)  # type: ignore[arg-type]
        self.body = mlp(2 * levels, 32, 32, 3)

    def forward(self, places: Tensor) -> Tensor:
        found = []
        for width, table in zip(self.widths, self.tables, strict=True):
            at = places * width
            corner, share, total = at.floor().long(), at - at.floor(), torch.zeros(len(places), 2)
            for i in (0, 1):
                for j in (0, 1):
                    codes = ((corner[:, 0] + i) ^ ((corner[:, 1] + j) * 2654435761)) % self.size
                    near = (share[:, 0] if i else 1 - share[:, 0]) * (share[:, 1] if j else 1 - share[:, 1])
                    total = total + near[:, None] * table(codes)
            found.append(total)
        return self.body(torch.cat(found, 1))


@healthy(
    "torch",
    "a photograph by hashed grids as in instant-ngp: tables that begin at 1e-4, Adam at 0.01 with an eps of 1e-15",
    learned_from=False,
)
def photograph_by_hashed_grids() -> Built:
    pieces = crops(80, 1)["train_dataloaders"].dataset.tensors[0][0]
    y, x = torch.meshgrid(torch.arange(80), torch.arange(80), indexing="ij")
    places = (torch.stack([y, x], 2).flatten(0, 1).float() + 0.5) / 80

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[1])

    module = Recipe(Hashed(), loss, adam(1e-2, betas=(0.9, 0.99), eps=1e-15))
    return Built(module, in_batches(256, places, pieces.flatten(1).T.contiguous()), {"max_epochs": 12}, WELL)


@healthy(
    "torch",
    "the deep Ritz method: a membrane under a weight by its least energy, which is below zero; points by chance; Adam",
    learned_from=False,
)
def membrane_by_energy() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        places = batch[0].requires_grad_()
        height = net(places) * (1 - places.square()).prod(1, keepdim=True)
        (slope,) = torch.autograd.grad(height.sum(), places, create_graph=True)
        weight = 20 * (-8 * (places - 0.3).square().sum(1)).exp()
        return (0.5 * slope.square().sum(1) - weight * height[:, 0]).mean()

    def falling(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(chosen, 0.99)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    places = 2 * torch.rand(64000, 2, generator=torch.Generator().manual_seed(0)) - 1
    module = Recipe(mlp(2, 48, 48, 1, activation=nn.Tanh), loss, falling)
    return Built(module, in_batches(256, places), {"max_epochs": 1}, WELL)


@healthy("torch", "a Hamiltonian net: a pendulum's ways are the gradient of a learned energy: the loss has two derivatives")
def pendulum_by_energy() -> Built:
    generator = torch.Generator().manual_seed(0)
    state = 4 * torch.rand(4000, 2, generator=generator) - 2
    way = torch.stack([state[:, 1], -3 * state[:, 0].sin()], 1) + 0.05 * torch.randn(4000, 2, generator=generator)

    def loss(net: Any, batch: Any) -> Tensor:
        where = batch[0].requires_grad_()
        (slope,) = torch.autograd.grad(net(where).sum(), where, create_graph=True)
        return F.mse_loss(torch.stack([slope[:, 1], -slope[:, 0]], 1), batch[1])

    module = Recipe(mlp(2, 64, 64, 1, activation=nn.Tanh), loss, adam(3e-3))
    return Built(module, in_batches(64, state, way), {"max_epochs": 5, "inference_mode": False}, WELL)
