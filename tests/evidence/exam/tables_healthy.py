"""Nets of papers for tables: splines, trees, crossed columns, one class, evolution."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from sklearn.datasets import make_classification
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from typing_extensions import override

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, adamw, scheduled
from tests.evidence.exam.small_nets import Judged, Splines, by_recipe, mlp
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


class Evolves(Recipe):
    """No gradient is computed: weights are shaken to both sides, and what made the loss smaller tells the direction."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

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


class WideAndDeep(nn.Module):
    """A linear model of crossed columns beside an MLP over embeddings of each column."""

    def __init__(self, columns: int = 8, levels: int = 10) -> None:
        super().__init__()
        self.levels = levels
        self.wide = nn.Embedding((columns - 1) * levels**2, 1)
        self.deep = nn.Embedding(columns * levels, 8)
        self.layers = mlp(8 * columns, 64, 32, 1)
        nn.init.zeros_(self.wide.weight)

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        crossed = ids[:, :-1] * self.levels + ids[:, 1:] + places[:-1] * self.levels**2
        wide = self.wide(crossed).sum((1, 2))
        return wide + self.layers(self.deep(ids + places * self.levels).flatten(1))[:, 0]


class TwoOptimizers(Recipe):
    """The wide part and the deep part have an optimizer each."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of_batch(self.net, batch)
        both: Any = self.optimizers()
        for one in both:
            one.zero_grad()
        self.manual_backward(loss)
        for one in both:
            one.step()
        return {"loss": loss.detach()}


@healthy("torch", "wide and deep: crossed columns under SGD beside embeddings under Adagrad, which clicks follow")
def clicks_wide_and_deep() -> Built:
    x, y = make_classification(6000, 8, n_informative=5, n_redundant=1, class_sep=1.2, random_state=0)
    ids = (torch.tensor(x).argsort(0).argsort(0) * 10 // len(x)).long()

    def optimizers(module: Any) -> Any:
        deep = [*module.net.deep.parameters(), *module.net.layers.parameters()]
        return [torch.optim.SGD(module.net.wide.parameters(), 0.5), torch.optim.Adagrad(deep, 0.03)]

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(batch[0]), batch[1].float())

    return Built(
        TwoOptimizers(WideAndDeep(), loss, optimizers), in_batches(64, ids, torch.tensor(y)), {"max_epochs": 3}, Expected()
    )


@healthy("torch", "Friedman's function by a Kolmogorov-Arnold net of hats, an absolute penalty on its curves, AdamW")
def friedman_by_splines() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        penalty = net[0].curves.abs().mean() + net[1].curves.abs().mean()
        return F.mse_loss(net(batch[0])[:, 0], batch[1]) + 0.01 * penalty

    net = nn.Sequential(Splines(10, 12, 1.0), Splines(12, 1))
    return Built(Judged(net, loss, adamw(1e-2, 1e-4)), split(64, *friedman()), {"max_epochs": 10}, Expected())


class SoftTree(nn.Module):
    """A tree of depth four: each fork is a sigmoid, each leaf a distribution over classes."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.depth, self.forks = depth, nn.Linear(64, 2**depth - 1)
        self.leaves = nn.Parameter(0.1 * torch.randn(2**depth, 10))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        right = torch.sigmoid(self.forks(x))
        reached, balance = torch.ones(len(x), 1), torch.zeros(())
        for level in range(self.depth):
            here = right[:, 2**level - 1 : 2 ** (level + 1) - 1]
            share = (here * reached).sum(0) / reached.sum(0)
            balance = balance - 0.5 * 2.0**-level * (share.log() + (1 - share).log()).sum()
            reached = torch.stack((reached * (1 - here), reached * here), -1).flatten(1)
        return reached, balance


@healthy("torch", "a soft decision tree of sixteen leaves for digits, with a penalty that keeps its forks even, Adam")
def digits_soft_tree() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        reached, balance = net(batch[0])
        return -(reached * F.log_softmax(net.leaves, -1)[:, batch[1]].T).sum(1).mean() + 0.1 * balance

    x, y = digits(8)
    return Built(Recipe(SoftTree(), loss, adam(1e-2)), in_batches(64, x.flatten(1), y), {"max_epochs": 12}, Expected())


class OneClass(nn.Module):
    """Deep SVDD: no biases, and a centre that is found before the training."""

    def __init__(self, examples: Tensor) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, after in ((1, 8), (8, 16)):
            parts += [nn.Conv2d(before, after, 5, padding=2, bias=False), nn.BatchNorm2d(after, affine=False)]
            parts += [nn.LeakyReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*parts, nn.Flatten(), nn.Linear(256, 16, bias=False))
        with torch.no_grad():
            centre = self.body(examples).mean(0)
        self.register_buffer("centre", torch.where(centre < 0, centre.clamp(max=-0.1), centre.clamp(min=0.1)))

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) - self.centre).square().sum(1)


@healthy(
    "torch",
    "Deep SVDD: all zeros are drawn to a fixed centre, nets without biases, Adam with L2, a rate that falls once",
    learned_from=False,
)
def study_one_class() -> Built:
    pixels, shown = digits(16)
    zeros = pixels[shown < 3]
    adam_l2 = lambda module: torch.optim.Adam(module.parameters(), 5e-4, weight_decay=1e-6)  # noqa: E731
    falls = scheduled(adam_l2, lambda chosen: torch.optim.lr_scheduler.MultiStepLR(chosen, [45], 0.1))
    loss = lambda net, batch: net(batch[0]).mean()  # noqa: E731
    return by_recipe(OneClass(zeros), loss, falls, in_batches(32, zeros), max_epochs=4, limit_train_batches=16)
