"""Healthy trainings on tables, particles and rewards: many heads, proximal steps, distances, guesses that pay, mostly zeros."""

from __future__ import annotations

from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.optimizers import ByWeight
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp, scaled
from tests.evidence.exam.unseen_eight_wiring import convolutions
from tests.evidence.exam.unseen_nine_pictures import warmed


class Shared(nn.Module):
    """BatchEnsemble's linear layer: members share the matrix, and each scales what goes in and what comes out."""

    def __init__(self, before: int, after: int, members: int, first: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after, bias=False)
        signs = torch.randint(0, 2, (members, before)) * 2.0 - 1
        self.into = nn.Parameter(signs if first else torch.ones(members, before))
        self.out, self.bias = nn.Parameter(torch.ones(members, after)), nn.Parameter(torch.zeros(members, after))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x * self.into) * self.out + self.bias


class Members(nn.Module):
    """TabM: columns in pieces of lines, eight nets that share their matrices, a head of its own for each."""

    def __init__(self, columns: int, members: int = 8, width: int = 48, bins: int = 8) -> None:
        super().__init__()
        self.register_buffer("edges", torch.linspace(0, 1, bins + 1)[:-1])
        self.pieces, self.bins = nn.Parameter(torch.randn(columns, bins, 4) * bins**-0.5), bins
        sizes = [4 * columns, width, width]
        self.layers = nn.ModuleList(Shared(sizes[i], sizes[i + 1], members, i == 0) for i in range(2))
        self.heads = nn.Parameter(torch.randn(members, width) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        edges: Any = self.edges
        filled = ((x[..., None] - edges) * self.bins).clamp(0, 1)
        x = torch.einsum("ncb,cbd->ncd", filled, self.pieces).relu().flatten(1)[:, None]
        for layer in self.layers:
            x = F.dropout(layer(x).relu(), 0.05, self.training)
        return (x * self.heads).sum(2)


@healthy("torch", "TabM for Friedman's function: eight nets that share matrices, columns in pieces of lines, AdamW with decay 0.03")
def friedman_by_members() -> Built:
    x, y = sklearn.datasets.make_friedman1(3200, noise=0.5, random_state=7)
    target = scaled(torch.tensor(y, dtype=torch.float32))

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])
        return F.mse_loss(told, batch[1][:, None].expand_as(told))

    module = Recipe(Members(10), loss, lambda module: torch.optim.AdamW(module.parameters(), 3e-3, weight_decay=0.03))
    return Built(module, in_batches(64, torch.tensor(x, dtype=torch.float32), target), {"max_epochs": 6}, WELL)


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


@healthy("torch", "clicks by crossed columns under FTRL-proximal by hand: a table that begins at zero, of which a part stays zero")
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


class Particles(nn.Module):
    """EGNN: messages from distances and charges; places move along what lies between them, whichever way they are turned."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.messages = nn.ModuleList(mlp(2 * width + 2, width, width, activation=nn.SiLU) for _ in range(layers))
        self.moves = nn.ModuleList(mlp(width, width, 1, activation=nn.SiLU) for _ in range(layers))
        self.states = nn.ModuleList(mlp(2 * width, width, width, activation=nn.SiLU) for _ in range(layers))
        self.speeds = nn.ModuleList(mlp(width, width, 1, activation=nn.SiLU) for _ in range(layers))
        for move in self.moves:
            nn.init.xavier_uniform_(move[-1].weight, 0.001)  # type: ignore[index, arg-type]

    def forward(self, places: Tensor, speed: Tensor, charge: Tensor) -> Tensor:
        many, products = places.shape[1], charge[:, :, None] * charge[:, None]
        hidden = self.first(torch.stack([speed.norm(dim=2), charge], 2))
        for message, move, state, pace in zip(self.messages, self.moves, self.states, self.speeds, strict=True):
            between = places[:, :, None] - places[:, None]
            both = [hidden[:, :, None].expand(-1, -1, many, -1), hidden[:, None].expand(-1, many, -1, -1)]
            said = message(torch.cat([*both, between.square().sum(3, keepdim=True), products[..., None]], 3))
            said = F.silu(said) * (1 - torch.eye(many))[..., None]
            places = places + pace(hidden) * speed + (between * move(said)).mean(2)
            hidden = hidden + state(torch.cat([hidden, said.sum(2)], 2))
        return places


@healthy("torch", "EGNN: where five charged particles are some time later, by messages that know distances alone; Adam, a cosine")
def particles_by_distances() -> Built:
    generator = torch.Generator().manual_seed(0)
    start, speed = 1.5 * torch.randn(4800, 5, 2, generator=generator), 0.7 * torch.randn(4800, 5, 2, generator=generator)
    charge = torch.randint(0, 2, (4800, 5), generator=generator) * 2.0 - 1
    places, now = start.clone(), speed.clone()
    for _ in range(60):
        between = places[:, :, None] - places[:, None]
        away = between.square().sum(3, keepdim=True) + 0.3
        now = now + 0.02 * (between * (charge[:, :, None] * charge[:, None])[..., None] / away**1.5).sum(2)
        places = places + 0.02 * now

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(*batch[:3]), batch[3])

    module = Recipe(Particles(), loss, warmed(lambda module: torch.optim.Adam(module.parameters(), 3e-3), 384))
    return Built(module, in_batches(50, start, speed, charge, places), {"max_epochs": 4, "gradient_clip_val": 1.0}, WELL)


class Guesses(Recipe):
    """A bandit with pictures: one of ten arms is drawn, and only its reward is seen; the mean reward is the baseline."""

    def __init__(self) -> None:
        super().__init__(convolutions().append(nn.Linear(64, 10)), None, adam(2e-3))
        self.mean = 0.1

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        policy = torch.distributions.Categorical(logits=self.net(batch[0]))
        arms = policy.sample()
        reward = (arms == batch[1]).float()
        self.mean = 0.95 * self.mean + 0.05 * float(reward.mean())
        self.log("val_score", reward.mean(), on_step=False, on_epoch=True)
        return -((reward - self.mean) * policy.log_prob(arms)).mean() - 0.02 * policy.entropy().mean()


@healthy("torch", "REINFORCE for a bandit with pictures: one of ten arms, a mean as baseline, a bonus for entropy; loss about zero")
def digits_guessed_for_reward() -> Built:
    return Built(Guesses(), in_batches(32, *digits(16)), {"max_epochs": 7}, WELL)


@healthy(
    "torch", "visits to a doctor, mostly none: a zero-inflated negative binomial, three outputs, one dispersion; batch norm, Adam"
)
def visits_mostly_none() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9600, 6, generator=generator)
    shares = -torch.rand(9600, 4, generator=generator).log().mean(1)
    rate = (1.2 + 0.9 * x[:, 0] - 0.6 * x[:, 1] * x[:, 2]).exp() * shares
    visits = torch.poisson(rate, generator=generator) * (torch.rand(9600, generator=generator) < (1.5 * x[:, 3]).sigmoid())
    net = nn.Sequential(nn.Linear(6, 48), nn.BatchNorm1d(48), nn.SiLU(), nn.Linear(48, 48), nn.BatchNorm1d(48), nn.SiLU())
    net.append(nn.Linear(48, 3))

    def loss(net: Any, batch: Any) -> Tensor:
        log_mean, gate, spread = net(batch[0]).unbind(1)
        many = F.softplus(spread) + 1e-3
        counts = torch.distributions.NegativeBinomial(many, logits=log_mean - many.log()).log_prob(batch[1])
        none = torch.logaddexp(F.logsigmoid(gate), F.logsigmoid(-gate) + counts)
        return -torch.where(batch[1] == 0, none, F.logsigmoid(-gate) + counts).mean()

    return Built(Recipe(net, loss, adam(3e-3)), in_batches(64, x, visits), {"max_epochs": 2}, WELL)
