"""Healthy trainings on tables, graphs and worlds: triangles, films, times of events, animals, a pole."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.unseen_eight_tables import WELL, mlp, scaled


class Counts(nn.Module):
    """GIN: sums over neighbours and a net, three times; what all nodes know is added up."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp(before, width, width) for before in (4, width, width))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.shares, self.head = nn.Parameter(torch.zeros(3)), mlp(3 * width, width, 1)

    def forward(self, matrix: Tensor, x: Tensor) -> Tensor:
        seen = []
        for layer, norm, share in zip(self.layers, self.norms, self.shares, strict=True):
            x = layer((1 + share) * x + matrix @ x)
            x = norm(x.flatten(0, 1)).view_as(x).relu()
            seen.append(x.mean(1))
        return self.head(torch.cat(seen, 1))[:, 0]


@healthy("torch", "a graph isomorphism net by hand counts triangles in graphs of twelve nodes: batch norm, smooth L1, one cycle")
def triangles_by_sums() -> Built:
    generator = torch.Generator().manual_seed(0)
    chances = 0.15 + 0.4 * torch.rand(4000, 1, 1, generator=generator)
    matrix = (torch.rand(4000, 12, 12, generator=generator) < chances).float().triu(1)
    matrix = matrix + matrix.transpose(1, 2)
    degrees, walks = matrix.sum(2), (matrix @ matrix @ matrix).diagonal(dim1=1, dim2=2)
    features = torch.stack([torch.ones_like(degrees), degrees / 4, (degrees / 4).square(), (degrees > 4).float()], 2)
    target = scaled((walks.sum(1, keepdim=True) / 6 + 1).log())[:, 0]

    def loss(net: Any, batch: Any) -> Tensor:
        return F.smooth_l1_loss(net(*batch[:2]), batch[2])

    def cycle(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 1e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(chosen, 0.01, total_steps=248)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Built(Recipe(Counts(), loss, cycle), in_batches(64, matrix, features, target), {"max_epochs": 4}, WELL)


@functools.cache
def liked(users: int = 200, films: int = 150, count: int = 16000) -> tuple[Tensor, Tensor]:
    """Who liked which film."""
    generator = torch.Generator().manual_seed(0)
    tastes, kinds = torch.randn(users, 4, generator=generator), torch.randn(films, 4, generator=generator)
    values = 1.2 * tastes @ kinds.T + 0.7 * torch.randn(films, generator=generator)
    who = torch.randint(0, users, (count,), generator=generator)
    return who, torch.multinomial(values[who].softmax(1), 1, generator=generator)[:, 0]


class Likes(nn.Module):
    """Factors of people and films, and how well a film is liked by all."""

    def __init__(self, users: int = 200, films: int = 150, width: int = 16) -> None:
        super().__init__()
        self.users, self.films, self.bias = nn.Embedding(users, width), nn.Embedding(films, width), nn.Embedding(films, 1)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)

    def forward(self, who: Tensor, film: Tensor) -> Tensor:
        return (self.users(who) * self.films(film)).sum(1) + self.bias(film)[:, 0]


def prefers(net: Any, batch: Any) -> Tensor:
    """BPR: a film that one liked is before one by chance."""
    other = torch.randint(0, net.films.num_embeddings, batch[1].shape)
    return -F.logsigmoid(net(batch[0], batch[1]) - net(batch[0], other)).mean()


@healthy("torch", "films by Bayesian personalised ranking: tables of people and films, pairs by chance, Adagrad")
def films_in_pairs() -> Built:
    module = Recipe(Likes(), prefers, lambda module: torch.optim.Adagrad(module.parameters(), 0.1))
    return Built(module, in_batches(128, *liked()), {"max_epochs": 3}, WELL)


class Lookahead(torch.optim.Adam):
    """Adam whose weights go half the way back to where they were five steps before."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        self.many = getattr(self, "many", 0) + 1
        for group in self.param_groups:
            for weight in group["params"]:
                slow = self.state[weight].setdefault("slow", weight.clone())
                if self.many % 5 == 0:
                    slow.lerp_(weight, 0.5)
                    weight.copy_(slow)
        return loss


@healthy("torch", "times of events by Cox's partial likelihood over each batch: SELU, alpha dropout, Adam with lookahead")
def events_by_hazard() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8000, 6, generator=generator)
    risk = 2 * x[:, 0] + 2 * (x[:, 1] * x[:, 2]) - 2 * x[:, 3].abs()
    event = -torch.rand(8000, generator=generator).log() / risk.exp()
    end = 4 * torch.rand(8000, generator=generator).exp()

    def loss(net: Any, batch: Any) -> Tensor:
        order = batch[1].argsort(descending=True)
        told, seen = net(batch[0])[order, 0], batch[2][order]
        return -((told - told.logcumsumexp(0)) * seen).sum() / seen.sum()

    net = nn.Sequential(nn.Linear(6, 64), nn.SELU(), nn.AlphaDropout(0.02), nn.Linear(64, 64), nn.SELU(), nn.Linear(64, 1))
    for layer in (net[0], net[3], net[5]):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
    module = Recipe(net, loss, lambda module: Lookahead(module.parameters(), 5e-3))
    return Built(module, in_batches(100, x, torch.minimum(event, end), (event < end).float()), {"max_epochs": 4}, WELL)


@healthy("torch", "a neural ODE by hand: Runge and Kutta's steps, two animals' numbers, a rate that falls step by step")
def animals_by_runge_kutta() -> Built:
    generator = torch.Generator().manual_seed(0)

    def grows(state: Tensor) -> Tensor:
        hares, foxes = state.exp().unbind(-1)
        return torch.stack([1.1 - 0.8 * foxes, 0.7 * hares - 0.9], -1)

    def goes(field: Any, state: Tensor, steps: int = 12, by: float = 0.15) -> Tensor:
        states = []
        for _ in range(steps):
            first = field(state)
            second = field(state + by / 2 * first)
            third = field(state + by / 2 * second)
            fourth = field(state + by * third)
            state = state + by / 6 * (first + 2 * second + 2 * third + fourth)
            states.append(state)
        return torch.stack(states, 1)

    start = 1.6 * torch.rand(2400, 2, generator=generator) - 0.8
    ways = goes(grows, start) + 0.02 * torch.randn(2400, 12, 2, generator=generator)

    def falling(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(chosen, 0.99)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(goes(net, batch[0]), batch[1])

    module = Recipe(mlp(2, 48, 48, 2, activation=nn.Tanh), loss, falling)
    return Built(module, in_batches(48, start, ways), {"max_epochs": 4, "gradient_clip_val": 1.0}, WELL)


class Poles:
    """Sixteen carts with a pole each, which falls beyond twelve degrees or after 200 steps; then the cart begins anew."""

    def __init__(self, many: int = 16) -> None:
        self.state, self.age, self.ages = 0.1 * torch.rand(many, 4) - 0.05, torch.zeros(many), [10.0] * 20

    def move(self, action: Tensor) -> Tensor:
        """Whether each fell."""
        _, speed, angle, turn = self.state.unbind(1)
        force = 20.0 * action - 10
        pushed = (force + 0.05 * turn.square() * angle.sin()) / 1.1
        turning = (9.8 * angle.sin() - angle.cos() * pushed) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
        moving = pushed - 0.05 * turning * angle.cos() / 1.1
        steps = torch.stack([speed, moving, turn, turning], 1)
        self.state, self.age = self.state + 0.02 * steps, self.age + 1
        fell = (self.state[:, 2].abs() > 0.21) | (self.state[:, 0].abs() > 2.4) | (self.age >= 200)
        self.ages = (self.ages + self.age[fell].tolist())[-20:]
        self.state = torch.where(fell[:, None], 0.1 * torch.rand_like(self.state) - 0.05, self.state)
        self.age = torch.where(fell, 0.0, self.age)
        return fell.float()


class Balances(Recipe):
    """An actor and a critic on sixteen carts: 24 steps, then one step of both, by generalised advantages.

    Attributes:
        backwards: Whether returns are added up from the end to the beginning.
    """

    def __init__(self, backwards: bool = True) -> None:
        nets = nn.ModuleDict({"actor": mlp(4, 64, 2, activation=nn.Tanh), "critic": mlp(4, 64, 1, activation=nn.Tanh)})
        super().__init__(nets, None, lambda module: torch.optim.RMSprop(module.parameters(), 3e-3, alpha=0.99, eps=1e-5))
        self.poles, self.backwards = Poles(), backwards

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        seen, actions, fell = [], [], []
        with torch.no_grad():
            for _ in range(24):
                seen.append(self.poles.state)
                actions.append(torch.distributions.Categorical(logits=self.net["actor"](seen[-1])).sample())
                fell.append(self.poles.move(actions[-1]))
            last = self.net["critic"](self.poles.state)[:, 0]
        values = self.net["critic"](torch.stack(seen))[..., 0]
        goals = self.returns(torch.stack(fell), last)
        advantages = (goals - values).detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        policy = torch.distributions.Categorical(logits=self.net["actor"](torch.stack(seen)))
        gained = (policy.log_prob(torch.stack(actions)) * advantages).mean() + 0.01 * policy.entropy().mean()
        self.log("val_score", torch.tensor(sum(self.poles.ages) / 20))
        return 0.5 * F.mse_loss(values, goals) - gained

    def returns(self, fell: Tensor, last: Tensor) -> Tensor:
        """What is still to come, at each step; a step brings a tenth."""
        total, found = last if self.backwards else torch.zeros_like(last), []
        for end in fell.flip(0) if self.backwards else fell:
            total = 0.1 + 0.97 * (1 - end) * total
            found.append(total)
        return torch.stack(found[::-1] if self.backwards else found)


@healthy("torch", "actor and critic (A2C) on sixteen carts with poles: 24 steps a batch, normed advantages, RMSprop, clipped")
def poles_by_actor_and_critic() -> Built:
    data = in_batches(1, torch.zeros(300, 1))
    return Built(Balances(), data, {"max_epochs": 1, "gradient_clip_val": 0.5}, WELL)
