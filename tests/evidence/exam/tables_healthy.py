"""Nets of papers for tables: splines, trees, crossed columns, one class, evolution."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from typing_extensions import override

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.loops import ByHand
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adam, adamw
from tests.evidence.exam.small_nets import Judged, Splines, mlp
from tests.evidence.exam.tables import friedman, split, table


class ByWeight(torch.optim.Optimizer):
    """An optimizer that updates each weight by itself."""

    @abstractmethod
    def update(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Update a weight in place.

        Args:
            weight: It has a gradient.
            group: The settings of its group.
            state: What is kept of it from step to step.
        """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.update(weight, group, self.state[weight])
        return loss


class Evolves(ByHand):
    """No gradient is computed: weights are shaken to both sides, and what made the loss smaller tells the direction."""

    @torch.no_grad()
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        weights = dict(self.net.named_parameters())
        slopes = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        for _ in range(16):
            shake = {name: 0.05 * torch.randn_like(weight) for name, weight in weights.items()}
            sides = [
                F.cross_entropy(functional_call(self.net, {n: w + sign * shake[n] for n, w in weights.items()}, batch[0]), batch[1])
                for sign in (1, -1)
            ]
            for name, slope in slopes.items():
                slope += (sides[0] - sides[1]) * shake[name] / (2 * 16 * 0.05**2)
        for name, weight in weights.items():
            weight.grad = slopes[name]
        chosen.step()
        return {"loss": F.cross_entropy(self.net(batch[0]), batch[1])}


@healthy("torch", "kinds of iris by evolution strategies: gradients are estimated from shaken weights and put in by hand, Adam")
def iris_by_evolution() -> Built:
    module = Evolves(mlp(4, 10, 3, activation=nn.Tanh), None, adam(0.03))
    return Built(module, in_batches(50, *table("iris")), {"max_epochs": 60}, WELL)


class Ftrl(ByWeight):
    """Follow the regularised leader, proximal: a rate for each weight, and weights that are exactly 0 until they are worth it."""

    def __init__(self, parameters: Any, alpha: float = 0.3, beta: float = 1.0, l1: float = 0.002, l2: float = 0.0) -> None:
        super().__init__(parameters, {"lr": alpha, "beta": beta, "l1": l1, "l2": l2})

    @override
    def update(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        if not state:
            state.update(total=torch.zeros_like(weight), squares=torch.zeros_like(weight))
        squares = state["squares"] + weight.grad.square()
        state["total"] += weight.grad - (squares.sqrt() - state["squares"].sqrt()) / group["lr"] * weight
        state["squares"] = squares
        over = (state["total"].abs() - group["l1"]).clamp_min(0) * state["total"].sign()
        weight.copy_(-over / ((group["beta"] + squares.sqrt()) / group["lr"] + group["l2"]))


class Crossed(nn.Module):
    """Logistic regression of fields and of all pairs of fields, by a hash into one table that begins at zero."""

    def __init__(self, fields: int = 4, size: int = 4096) -> None:
        super().__init__()
        self.table, self.bias, self.size = nn.EmbeddingBag(size, 1, mode="sum"), nn.Parameter(torch.zeros(1)), size
        nn.init.zeros_(self.table.weight)
        self.pairs = torch.combinations(torch.arange(fields))

    def forward(self, ids: Tensor) -> Tensor:
        own = ids * 31 + torch.arange(ids.shape[1]) * 7919
        first, second = ids[:, self.pairs].unbind(2)
        crossed = first * 1009 + second * 9176 + torch.arange(len(self.pairs)) * 104729
        return self.table(torch.cat([own, crossed], 1) % self.size)[:, 0] + self.bias


@healthy(
    "torch",
    "clicks by crossed columns under FTRL-proximal by hand: a table that begins at zero, of which a part stays zero",
    learned_from=False,
)
def clicks_by_the_leader() -> Built:
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randint(0, many, (25600,), generator=generator) for many in (24, 16, 12, 7)], 1)
    worth, pairs = torch.randn(4, 24, generator=generator), 2.5 * torch.randn(24, 16, generator=generator)
    score = sum(worth[i][ids[:, i]] for i in range(4)) + pairs[ids[:, 0], ids[:, 1]] - 1
    clicked = (torch.rand(25600, generator=generator) < torch.as_tensor(score).sigmoid()).float()

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1])

    module = Recipe(Crossed(), loss, lambda module: Ftrl(module.parameters()))
    return Built(module, in_batches(128, ids, clicked), {"max_epochs": 2}, WELL)


@healthy("torch", "Friedman's function by a Kolmogorov-Arnold net of hats, an absolute penalty on its curves, AdamW")
def friedman_by_splines() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        penalty = net[0].curves.abs().mean() + net[1].curves.abs().mean()
        return F.mse_loss(net(batch[0])[:, 0], batch[1]) + 0.01 * penalty

    net = nn.Sequential(Splines(10, 12, 1.0), Splines(12, 1))
    return Built(Judged(net, loss, adamw(1e-2, 1e-4)), split(64, *friedman()), {"max_epochs": 10}, Expected())
