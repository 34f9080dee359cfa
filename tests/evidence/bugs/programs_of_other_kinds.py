"""Healthy programs over graphs, by other ways to learn, in other precisions and on two ranks, at small sizes."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.evidence.bugs.cases import Built, Expected, Recipe, healthy
from tests.evidence.bugs.parts import EPOCHS, Digits, digits, loader, mlp, two_ranks
from tests.evidence.faults import data

FINE = Expected()

# Graphs: every batch is the whole graph.


def graph() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Papers that are digits: features, adjacency of like images, labels, and which of them train."""
    x, y, _, _ = data.digits()
    x, y = x[:240], y[:240]
    near = torch.cdist(x, x).topk(6, largest=False).indices
    adjacency = torch.zeros(240, 240).scatter(1, near, 1.0)
    adjacency = ((adjacency + adjacency.T) > 0).float()
    return x, adjacency, y, torch.rand(240) < 0.5


class WholeGraph(Dataset[Any]):
    """One graph, epoch after epoch."""

    def __init__(self, normalised: bool) -> None:
        x, adjacency, y, trains = graph()
        root = adjacency.sum(1).rsqrt()
        self.item = x, root[:, None] * adjacency * root if normalised else adjacency, y, trains

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return self.item


def graph_loss(net: Any, batch: Any) -> Tensor:
    """Of the nodes that train."""
    x, adjacency, y, trains = batch
    return F.nll_loss(net(x, adjacency)[trains], y[trains])


class GraphConvolution(nn.Module):
    """A weight, and the mean of the neighbours."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.kernel, self.bias = nn.Parameter(torch.empty(fan_in, fan_out)), nn.Parameter(torch.zeros(fan_out))
        nn.init.xavier_normal_(self.kernel)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return adjacency @ (x @ self.kernel) + self.bias


class Gcn(nn.Module):
    """Two of these."""

    def __init__(self) -> None:
        super().__init__()
        self.gc1, self.gc2, self.dropout = GraphConvolution(64, 16), GraphConvolution(16, 10), nn.Dropout(0.5)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return F.log_softmax(self.gc2(self.dropout(F.relu(self.gc1(x, adjacency))), adjacency), dim=1)


def graph_adam(module: Any) -> Any:
    """The examples' optimizer."""
    return torch.optim.Adam(module.parameters(), lr=5e-3, weight_decay=5e-4)


@healthy("pytorch/examples/gcn", "GCN: one graph, 60 epochs")
def gcn() -> Built:
    loaders = {"train_dataloaders": DataLoader(WholeGraph(True), batch_size=None)}
    return Built(Recipe(Gcn(), graph_loss, graph_adam), loaders, {"max_epochs": 60}, FINE)


class GraphAttention(nn.Module):
    """A node attends to its neighbours, written out."""

    def __init__(self, fan_in: int, hidden: int, heads: int, concat: bool) -> None:
        super().__init__()
        self.hidden, self.heads, self.concat = hidden, heads, concat
        self.W, self.a = nn.Parameter(torch.empty(fan_in, hidden * heads)), nn.Parameter(torch.empty(heads, 2 * hidden, 1))
        self.leakyrelu = nn.LeakyReLU(0.2)
        nn.init.xavier_normal_(self.W)
        nn.init.xavier_normal_(self.a)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        h = F.dropout(x @ self.W, 0.4, training=self.training).view(len(x), self.heads, self.hidden).permute(1, 0, 2)
        scores = self.leakyrelu(h @ self.a[:, : self.hidden] + (h @ self.a[:, self.hidden :]).mT)
        attention = F.softmax(torch.where(adjacency > 0, scores, -9e16 * torch.ones_like(scores)), dim=-1)
        h = F.dropout(attention, 0.4, training=self.training) @ h
        return h.permute(1, 0, 2).flatten(1) if self.concat else h.mean(0)


class Gat(nn.Module):
    """Eight heads, then one."""

    def __init__(self) -> None:
        super().__init__()
        self.gat1, self.gat2 = GraphAttention(64, 8, 8, True), GraphAttention(64, 10, 1, False)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return F.log_softmax(self.gat2(F.elu(self.gat1(x, adjacency)), adjacency), dim=1)


@healthy("pytorch/examples/gat", "GAT: attention over a graph, written out")
def gat() -> Built:
    loaders = {"train_dataloaders": DataLoader(WholeGraph(False), batch_size=None)}
    return Built(Recipe(Gat(), graph_loss, graph_adam), loaders, {"max_epochs": 60}, FINE)


# Other ways to learn.


class GoodnessLayer(nn.Module):
    """Normalises its input, so that a layer before it tells it directions only."""

    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.linear, self.relu = nn.Linear(fan_in, fan_out), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.linear(x / (x.norm(2, 1, keepdim=True) + 1e-4)))


class ForwardForward(LightningModule):
    """Each layer learns alone to be active for the right label and not for a wrong one, with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net = nn.ModuleList((GoodnessLayer(64, 64), GoodnessLayer(64, 64)))
        self.losses: list[Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        wrong = (y + torch.randint(1, 10, y.shape)) % 10
        right, false = (torch.cat((F.one_hot(label, 10), x[:, 10:]), 1) for label in (y, wrong))
        for layer, optimizer in zip(self.net, self.optimizers(), strict=True):  # type: ignore[arg-type]
            good, bad = layer(right), layer(false)
            loss = F.softplus(torch.cat((2 - good.square().mean(1), bad.square().mean(1) - 2))).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            right, false = good.detach(), bad.detach()
        self.losses.append(loss.detach())

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(layer.parameters(), lr=0.03) for layer in self.net]


@healthy("pytorch/examples/mnist_forward_forward", "the forward-forward algorithm: an optimizer for each layer")
def forward_forward() -> Built:
    x, y, _, _ = data.digits()
    return Built(ForwardForward(), {"train_dataloaders": loader(x, y, batch_size=48)}, EPOCHS, FINE)


class Pole:
    """A pole on a cart, pushed to the left or to the right: the equations of Barto, Sutton and Anderson."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def reset(self) -> Tensor:
        self.state = torch.rand(4, generator=self.generator) * 0.1 - 0.05
        return self.state

    def step(self, action: int) -> tuple[Tensor, bool]:
        """Where it is after a fiftieth of a second, and whether it fell."""
        x, speed, angle, turning = self.state.tolist()
        push = 10.0 if action else -10.0
        cos, sin = math.cos(angle), math.sin(angle)
        pull = (push + 0.05 * turning**2 * sin) / 1.1
        falling = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        moving = pull - 0.05 * falling * cos / 1.1
        self.state = torch.tensor([x + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turning, turning + 0.02 * falling])
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Episodes(Dataset[Any]):
    """Numbers of episodes."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(index)


class Policy(LightningModule):
    """REINFORCE, or an actor with a critic: an episode is a batch."""

    def __init__(self, critic: bool) -> None:
        super().__init__()
        self.affine1, self.dropout = nn.Linear(4, 128), nn.Dropout(0.0 if critic else 0.6)
        self.action_head = nn.Linear(128, 2)
        self.value_head = nn.Linear(128, 1) if critic else None
        self.pole = Pole()

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = F.relu(self.dropout(self.affine1(state)))
        return F.softmax(self.action_head(hidden), dim=-1), None if self.value_head is None else self.value_head(hidden)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        state, chosen, values = self.pole.reset(), [], []
        for _ in range(60):
            probabilities, value = self(state[None])
            choice = torch.distributions.Categorical(probabilities)
            action = choice.sample()
            chosen.append(choice.log_prob(action))
            values.append(value)
            state, done = self.pole.step(int(action))
            if done:
                break
        rewards = torch.ones(len(chosen))
        returns = torch.stack([(0.99 ** torch.arange(len(rewards) - t) * rewards[t:]).sum() for t in range(len(rewards))])
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        log_probabilities = torch.cat(chosen)
        if self.value_head is None:
            return -(log_probabilities * returns).sum()
        estimates = torch.cat(values).squeeze(1)  # type: ignore[arg-type]
        return -(log_probabilities * (returns - estimates.detach())).sum() + F.smooth_l1_loss(estimates, returns, reduction="sum")

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=3e-2 if self.value_head is not None else 1e-2)


@healthy("pytorch/examples/reinforcement_learning", "REINFORCE on a pole: an episode is a batch")
def reinforce() -> Built:
    return Built(Policy(critic=False), {"train_dataloaders": DataLoader(Episodes(), batch_size=None)}, EPOCHS, FINE)


@healthy("pytorch/examples/reinforcement_learning", "an actor and a critic on a pole")
def actor_critic() -> Built:
    return Built(Policy(critic=True), {"train_dataloaders": DataLoader(Episodes(), batch_size=None)}, EPOCHS, FINE)


# Precision and ranks.


@healthy("pytorch/examples/distributed/ddp-tutorial-series", "DDP: two ranks over gloo", processes=2)
def ddp() -> Built:
    return Built(Digits(mlp()), digits(batch_size=24), two_ranks(), FINE)


@healthy("pytorch.org/tutorials/recipes/recipes/amp_recipe.html", "autocast: three linear layers in bfloat16")
def autocast() -> Built:
    return Built(Digits(mlp(width=96)), digits(), {**EPOCHS, "precision": "bf16-mixed"}, FINE)
