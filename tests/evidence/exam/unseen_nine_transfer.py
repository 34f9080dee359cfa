"""Healthy trainings that begin from a trained net: a teacher's soft answers, adapters by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.unseen_eight_tables import WELL, mlp
from tests.evidence.exam.unseen_nine_pictures import warmed


def taught(net: nn.Module, x: Tensor, y: Tensor, steps: int = 200, rate: float = 3e-3) -> nn.Module:
    """A net that has learned these rows."""
    chosen = torch.optim.Adam(net.parameters(), rate)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        chosen.zero_grad()
        with torch.enable_grad():
            F.cross_entropy(net(x[rows]), y[rows]).backward()
        chosen.step()
    return net


@healthy("torch", "distillation: a small convolutional net learns from labels and a trained MLP's answers at a temperature of 4")
def digits_from_a_teacher() -> Built:
    images, shown = digits(8)
    teacher = taught(nn.Sequential(nn.Flatten(), *mlp(64, 128, 10)), images, shown)
    nets = nn.ModuleDict({"teacher": teacher.eval().requires_grad_(False)})
    student = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
    nets["student"] = student.extend([nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 10)])

    def loss(nets: Any, batch: Any) -> Tensor:
        told, soft = nets["student"](batch[0]), nets["teacher"](batch[0])
        away = F.kl_div((told / 4).log_softmax(1), (soft / 4).log_softmax(1), log_target=True, reduction="batchmean")
        return 0.7 * 16 * away + 0.3 * F.cross_entropy(told, batch[1])

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam(module.net["student"].parameters(), 3e-3)

    return Built(Recipe(nets, loss, optimizers), in_batches(32, images, shown), {"max_epochs": 4}, WELL)


class Adapted(nn.Module):
    """A linear layer that stays, and beside it a product of two narrow matrices that learns."""

    def __init__(self, layer: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) * layer.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 2 * x @ self.down.T @ self.up.T


@healthy("torch", "LoRA by hand: a net that knows 0 to 4 learns 5 to 9 by narrow matrices and a new head, AdamW, a cosine")
def digits_by_narrow_matrices() -> Built:
    images, shown = digits(8)
    flat, small = images.flatten(1), shown < 5
    net: Any = taught(mlp(64, 96, 96, 5), flat[small], shown[small])
    net[0], net[2], net[4] = Adapted(net[0]), Adapted(net[2]), nn.Linear(96, 5)

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW([weight for weight in module.parameters() if weight.requires_grad], 5e-3)

    module = Recipe(net, lambda net, batch: F.cross_entropy(net(batch[0]), batch[1]), warmed(optimizers, 200))
    return Built(module, in_batches(32, flat[~small], shown[~small] - 5), {"max_epochs": 8}, WELL)
