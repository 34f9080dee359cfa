"""Healthy trainings on tables, worlds and graphs: categories, tasks that weigh themselves, flows, agents, nets of nets."""

from __future__ import annotations

import collections
import random
from typing import Any

import sklearn.datasets
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp, scaled, table

SHOPS = (30, 7, 12, 4)
"""How many shops, days of the week, months and kinds of goods there are."""


def sales(count: int = 5000) -> tuple[Tensor, Tensor, Tensor]:
    """Categories, numbers, and the logarithm of what was sold, standardised."""
    generator = torch.Generator().manual_seed(0)
    categories = torch.stack([torch.randint(0, many, (count,), generator=generator) for many in SHOPS], 1)
    numbers = torch.randn(count, 4, generator=generator)
    effects = [torch.randn(many, generator=generator)[categories[:, i]] for i, many in enumerate(SHOPS)]
    sold = effects[0] + effects[1] * (1 + 0.5 * effects[3]) + 0.7 * effects[2] + numbers[:, 0] * effects[3] - numbers[:, 1].relu()
    return categories, numbers, scaled((sold + 0.2 * torch.randn(count, generator=generator))[:, None])[:, 0]


class Entities(nn.Module):
    """An embedding for each category, batch norm for numbers, and an MLP with dropout, as in fastai's tabular learner."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(many, min(12, (many + 1) // 2)) for many in SHOPS)
        for one in self.tables:
            nn.init.trunc_normal_(one.weight, std=0.01)
        width = sum(one.embedding_dim for one in self.tables) + 4
        self.numbers = nn.BatchNorm1d(4)
        self.body = nn.Sequential(nn.Linear(width, 96), nn.ReLU(), nn.BatchNorm1d(96), nn.Dropout(0.05))
        self.body.extend([nn.Linear(96, 48), nn.ReLU(), nn.BatchNorm1d(48), nn.Linear(48, 1)])

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        found = [one(column) for one, column in zip(self.tables, categories.unbind(1), strict=True)]
        return self.body(torch.cat([*found, self.numbers(numbers)], 1))[:, 0]


@healthy("torch", "sales by embeddings of categories as in fastai's tabular learner: small first weights, batch norm, one cycle")
def sales_by_entities() -> Built:
    def cycle(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 1e-3, betas=(0.9, 0.99), weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(chosen, 0.02, total_steps=312)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Recipe(Entities(), lambda net, batch: F.mse_loss(net(*batch[:2]), batch[2]), cycle)
    return Built(module, in_batches(64, *sales()), {"max_epochs": 4}, WELL)


class Weighs(nn.Module):
    """One body, three answers, and the logarithm of each task's noise."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.heads = mlp(10, 64, 48, activation=nn.SiLU), nn.ModuleList(nn.Linear(48, size) for size in (1, 1, 4))
        self.noises = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> list[Tensor]:
        hidden = F.silu(self.body(x))
        return [head(hidden) for head in self.heads]


@healthy("torch", "three tasks whose weights are learned from their noise (Kendall): a value, a chance, a quarter; Adafactor")
def friedman_in_three_tasks() -> Built:
    x, y = sklearn.datasets.make_friedman1(3000, noise=0.5, random_state=1)
    columns, target = torch.tensor(x, dtype=torch.float32), scaled(torch.tensor(y, dtype=torch.float32))
    edges = columns[:, 0] + columns[:, 5]

    def loss(net: Any, batch: Any) -> Tensor:
        value, chance, quarter = net(2 * batch[0] - 1)
        parts = [F.mse_loss(value[:, 0], batch[1]), F.binary_cross_entropy_with_logits(chance[:, 0], batch[2])]
        parts.append(F.cross_entropy(quarter, batch[3]))
        return (torch.stack(parts) * (-net.noises).exp() + net.noises / 2).sum()

    quarters = torch.bucketize(target, target.quantile(torch.tensor([0.25, 0.5, 0.75])))
    data = in_batches(50, columns, target, (edges > 1).float(), quarters)
    module = Recipe(Weighs(), loss, lambda module: torch.optim.Adafactor(module.parameters(), 0.02))
    return Built(module, data, {"max_epochs": 5}, WELL)


class Made(nn.Module):
    """A net whose answer for a column depends on the columns before it alone."""

    degrees: Tensor

    def __init__(self, columns: int, width: int = 64) -> None:
        super().__init__()
        places, hidden = torch.arange(columns), torch.arange(width) % (columns - 1)
        self.layers = nn.ModuleList([nn.Linear(columns, width), nn.Linear(width, width), nn.Linear(width, 2 * columns)])
        self.masks: list[Tensor] = [hidden[:, None] >= places, hidden[:, None] >= hidden, (places[:, None] > hidden).repeat(2, 1)]
        nn.init.zeros_(self.layers[2].bias)
        self.layers[2].weight.data *= 0.1

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer, mask in zip(self.layers, self.masks, strict=True):
            x = F.linear(x, layer.weight * mask, layer.bias)
            x = x.tanh() if layer is not self.layers[2] else x
        mean, width = x.chunk(2, 1)
        return mean, 2 * torch.tanh(width / 2)


class Flow(nn.Module):
    """Three of them, each over the columns of the last in turned order."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Made(columns) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """The logarithm of the density."""
        volume = x.new_zeros(len(x))
        for part in self.parts:
            mean, width = part(x)
            x, volume = ((x - mean) * (-width).exp()).flip(1), volume - width.sum(1)
        return volume - 0.5 * (x.square() + 1.8379).sum(1)


@healthy("torch", "a masked autoregressive flow for eight columns of the tumours: the loss falls below that of a Gaussian, AdamW")
def tumours_by_flow() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return -net(batch[0] + 0.05 * torch.randn_like(batch[0])).mean()

    module = Recipe(Flow(8), loss, lambda module: torch.optim.AdamW(module.parameters(), 3e-3, weight_decay=1e-3))
    data = in_batches(64, table("breast_cancer")[0][:, :8].contiguous())
    return Built(module, data, {"max_epochs": 25, "gradient_clip_val": 5.0}, WELL)


class Field:
    """A field of five by five: from a corner to the other, a wall between, a step costs a little."""

    def __init__(self) -> None:
        self.place = (0, 0)
        self.steps = 0

    def seen(self) -> Tensor:
        """Where the agent is."""
        return F.one_hot(torch.tensor(5 * self.place[0] + self.place[1]), 25).float()

    def move(self, action: int) -> tuple[float, bool, bool]:
        """What it brings, whether the goal is reached, and whether the time is over."""
        down, right = ((-1, 0), (1, 0), (0, -1), (0, 1))[action]
        new = (min(max(self.place[0] + down, 0), 4), min(max(self.place[1] + right, 0), 4))
        self.place = self.place if new in ((2, 1), (2, 2), (2, 3), (2, 4)) else new
        self.steps += 1
        reached, over = self.place == (4, 4), self.steps >= 40
        if reached or over:
            reward = 1.0 if reached else -0.02
            return reward, reached, over
        return -0.02, False, False


class Explores(Recipe):
    """Double DQN with a memory: a step in the field, then a step of the net on what is remembered.

    Attributes:
        broadcast: Whether what was chosen keeps a dimension of one beside goals that have none.
    """

    def __init__(self, broadcast: bool = False) -> None:
        nets = nn.ModuleDict({"quick": mlp(25, 64, 64, 4), "slow": mlp(25, 64, 64, 4)})
        nets["slow"].load_state_dict(nets["quick"].state_dict())
        nets["slow"].requires_grad_(False)
        super().__init__(nets, None, lambda module: torch.optim.Adam(module.net["quick"].parameters(), 2e-3))
        self.broadcast, self.field, self.returns, self.total = broadcast, Field(), collections.deque([0.0] * 10, 10), 0.0
        self.memory: collections.deque[tuple[Tensor, int, float, Tensor, bool]] = collections.deque(maxlen=4000)
        self.random = random.Random(0)

    def act(self, chance: float) -> None:
        before = self.field.seen()
        with torch.no_grad():
            best = int(self.net["quick"](before).argmax())
        action = self.random.randrange(4) if self.random.random() < chance else best
        reward, reached, over = self.field.move(action)
        self.memory.append((before, action, reward, self.field.seen(), reached))
        self.total += reward
        if reached or over:
            self.returns.append(self.total)
            self.field, self.total = Field(), 0.0

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        for _ in range(200 if batch_idx == 0 else 8):
            self.act(max(0.1, 1 - batch_idx / 150))
        rows = self.random.sample(list(self.memory), 64)
        before, after = torch.stack([row[0] for row in rows]), torch.stack([row[3] for row in rows])
        actions, rewards = torch.tensor([row[1] for row in rows]), torch.tensor([row[2] for row in rows])
        going_on = 1 - torch.tensor([float(row[4]) for row in rows])
        chosen = self.net["quick"](before).gather(1, actions[:, None])
        with torch.no_grad():
            best = self.net["quick"](after).argmax(1, keepdim=True)
            goal = rewards + 0.95 * going_on * self.net["slow"](after).gather(1, best)[:, 0]
        self.log("return", torch.tensor(sum(self.returns) / 10))
        return F.smooth_l1_loss(chosen if self.broadcast else chosen[:, 0], goal)

    def on_train_batch_end(self, *_: Any) -> None:
        for slow, quick in zip(self.net["slow"].parameters(), self.net["quick"].parameters(), strict=True):
            slow.data.lerp_(quick.data, 0.03)

    def on_train_epoch_end(self) -> None:
        self.log("val_score", torch.tensor(greedy_return(self.net["quick"])))


@torch.no_grad()
def greedy_return(net: Any) -> float:
    """What the agent gets that always takes what it thinks best."""
    field, total, ended = Field(), 0.0, False
    while not ended:
        reward, reached, over = field.move(int(net(field.seen()).argmax()))
        total, ended = total + reward, reached or over
    return total


@healthy("torch", "double DQN in a field with a wall: a memory, a slow net that follows, Huber loss; rewards are rare at first")
def field_by_double_dqn() -> Built:
    data = in_batches(1, torch.zeros(400, 1))
    return Built(Explores(), data, {"max_epochs": 1, "gradient_clip_val": 10.0}, WELL)


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


class Passes(nn.Module):
    """Two graph convolutions over a normed matrix, with dropout."""

    matrix: Tensor

    def __init__(self, matrix: Tensor, features: int, kinds: int) -> None:
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(features, 32), nn.Linear(32, kinds), nn.Dropout(0.5)
        degrees = matrix.sum(1) + 1
        self.register_buffer("matrix", (matrix + torch.eye(len(matrix))) / (degrees[:, None] * degrees).sqrt())

    def forward(self, x: Tensor) -> Tensor:
        hidden = (self.matrix @ self.first(self.drop(x))).relu()
        return self.matrix @ self.second(self.drop(hidden))


@healthy("torch", "a graph net in plain PyTorch: 300 people in four groups, of whom 40 are known, each step sees all; Adam with L2")
def people_by_their_friends() -> Built:
    generator = torch.Generator().manual_seed(0)
    group = torch.arange(300) % 4
    chances = torch.where(group[:, None] == group, 0.08, 0.01)
    friends = (torch.rand(300, 300, generator=generator) < chances).float().triu(1)
    features = torch.randn(300, 16, generator=generator) + 0.7 * F.one_hot(group, 16)
    known = torch.randperm(300, generator=generator)[:40]

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][0])[known], batch[1][0][known])

    module = Recipe(Passes(friends + friends.T, 16, 4), loss, adam(0.02, weight_decay=5e-4))
    return Built(module, in_batches(1, features[None], group[None]), {"max_epochs": 150}, WELL)
