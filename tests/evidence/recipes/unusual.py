"""Rarer trainings: codes, contrasts, rewards, spikes, equilibria, experts, graphs and learned weights of losses."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.optim import SGD, Adam, AdamW, RMSprop

from .case import Training, accuracy, cross_entropy, fault, fit, healthy, mse
from .data import digits, feed, rng, scaled
from .nets import follow, frozen, mlp


@fault("sample_for_rsample", "Codes come from sample(), which passes no gradient, not rsample().", "val_loss", 0.33, draw="sample")
@healthy
def vae_with_a_warmup(draw: str = "rsample") -> Training:
    steps = count()

    def elbo(net: Any, batch: Any) -> Tensor:
        mean, spread = net["encoder"](batch[0]).chunk(2, 1)
        out = net["decoder"](getattr(Normal(mean, spread.exp()), draw)())
        divergence = (mean**2 + (2 * spread).exp() - 2 * spread - 1).sum(1).mean() / 2
        weight = min(1.0, next(steps) / 200) if net.training else 1.0
        return 2 * (out - batch[0]).square().sum(1).mean() + weight * divergence

    net = nn.ModuleDict({"encoder": mlp(64, 64, 12), "decoder": mlp(6, 64, 64)})
    return fit(net, elbo, partial(Adam, lr=3e-3), feed(digits()[0].flatten(1), batch=32), 12)


# digits under a slope of brightness that says nothing of their class; a view draws a slope of its own
def view(x: Tensor) -> Tensor:
    slope = torch.randn(len(x), 3) @ torch.stack([torch.ones(64), torch.arange(64) % 8 / 3.5 - 1, torch.arange(64) // 8 / 3.5 - 1])
    return x + 2 * slope + 0.1 * torch.randn_like(x)


def neighbours(net: Any, batch: Any) -> dict[str, Tensor]:
    z = F.normalize(net[0](view(batch[0])), dim=1)
    return {"val_acc": (batch[1][(z @ z.T - 2 * torch.eye(len(z))).argmax(1)] == batch[1]).float().mean()}


@fault("both_views_the_same", "Both views of a picture are the same one.", "val_acc", 0.82, same=True)
@healthy
def contrast_of_two_views(same: bool = False) -> Training:
    def contrast(net: Any, batch: Any) -> Tensor:
        first = view(batch[0])
        z = F.normalize(net(torch.cat([first, first if same else view(batch[0])])), dim=1)
        return F.cross_entropy(z @ z.T / 0.2 - 1e4 * torch.eye(len(z)), torch.arange(len(z)).roll(len(z) // 2))

    x, y = digits()
    net = nn.Sequential(mlp(64, 128, 64), nn.Sequential(nn.ReLU(), nn.Linear(64, 32)))
    return fit(net, contrast, partial(AdamW, lr=2e-3), feed(x.flatten(1), y), 20, neighbours)


@fault("no_stop_of_the_gradient", "The targets of SimSiam are not detached.", "val_acc", 0.74, stop=torch.clone)
@healthy
def simsiam(stop: Any = torch.detach) -> Training:
    def distance(net: Any, batch: Any) -> Tensor:
        a, b = net[0](view(batch[0])), net[0](view(batch[0]))
        return -(F.cosine_similarity(net[1](a), stop(b)) + F.cosine_similarity(net[1](b), stop(a))).mean() / 2

    x, y = digits()
    body = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64))
    guess = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 64))
    net = nn.Sequential(body, guess)
    return fit(net, distance, partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-4), feed(x.flatten(1), y), 40, neighbours)


@fault("zeros_for_minus_ones", "cosine_embedding_loss is given 0, not -1, for pairs that differ.", "val_acc", 1.15, low=0)
@healthy
def pairs_by_cosine(low: int = -1) -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        a, b, alike = batch
        return F.cosine_embedding_loss(net(a), net(b), torch.where(alike, 1, low), margin=0.2)

    def right(net: Any, batch: Any) -> dict[str, Tensor]:
        found = F.cosine_similarity(net(batch[0]), net(batch[1])) > 0.6
        return {"val_acc": (found == batch[2]).float().mean()}

    x, y = digits()
    a, b = torch.randint(0, len(x), (2, 8000), generator=rng())
    a, b = torch.stack([a, b])[:, (y[a] == y[b]) | (torch.rand(8000, generator=rng(1)) < 0.15)]
    fed = feed(x[a].flatten(1), x[b].flatten(1), y[a] == y[b], batch=32)
    return fit(mlp(64, 64, 16), loss, partial(Adam, lr=2e-3), fed, 8, right)


@fault("policy_without_its_minus", "The loss of a policy lacks its minus sign.", "val_acc", 1.05, sign=1.0)
@healthy
def bandit_on_digits(sign: float = -1.0) -> Training:
    def surrogate(net: Any, batch: Any) -> Tensor:
        policy = Categorical(logits=net(batch[0]))
        action = policy.sample()
        reward = (action == batch[1]).float()
        return sign * (policy.log_prob(action) * (reward - reward.mean())).mean() - 0.01 * policy.entropy().mean()

    net = nn.Sequential(nn.Flatten(), mlp(64, 64, 10))
    return fit(net, surrogate, partial(Adam, lr=3e-3), feed(*digits(), batch=32), 15, accuracy)


@fault("values_past_the_end", "The value of the next state counts at the end of a game too.", "val_error", 9.0, ends=False)
@healthy
def q_learning_from_a_replay(ends: bool = True) -> Training:
    place, moves = torch.cartesian_prod(torch.arange(5), torch.arange(5)), torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
    after = (place[:, None] + moves).clamp(0, 4) @ torch.tensor([5, 1])
    won, true = (after == 24).float(), torch.zeros(25, 4)
    for _ in range(60):
        true = won + 0.9 * (1 - won) * true[after].amax(2)

    def error(net: Any, batch: Any) -> Tensor:
        follow(slow, net, 0.95)
        state, action, done = batch
        best = slow(place[after[state, action]] / 2 - 1).amax(1)
        target = done + 0.9 * (1 - done if ends else 1) * best
        return F.smooth_l1_loss(net(place[state] / 2 - 1).gather(1, action[:, None])[:, 0], target)

    def gap(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_error": (net(place / 2 - 1) - true)[:24].abs().mean()}

    state, action = torch.randint(0, 24, (3000,), generator=rng()), torch.randint(0, 4, (3000,), generator=rng(1))
    slow = frozen(net := mlp(2, 64, 64, 4))
    return fit(net, error, partial(Adam, lr=2e-3), feed(state, action, won[state, action], batch=32), 16, gap)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(2, 6), nn.Linear(2, 6)
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        gates = self.router(x).softmax(1)
        best, chosen = gates.max(1, True)
        self.balance = 6 * (F.one_hot(chosen[:, 0], 6).float().mean(0) * gates.mean(0)).sum()
        return self.experts(x).gather(1, chosen) * best


@healthy
def mixture_of_linear_experts() -> Training:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[1]) + 0.02 * net.balance

    x = 4 * torch.rand(2000, 2, generator=rng()) - 2
    y = torch.where(x[:, :1] > 0, 2 * x[:, 1:], -2 * x[:, 1:]) + torch.where(x[:, 1:] > 0, x[:, :1], -x[:, :1])
    return fit(Experts(), loss, partial(Adam, lr=3e-2), feed(x, y, batch=32), 25, lambda net, b: {"val_error": mse(net, b)})


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, v: Tensor, chained: bool) -> Tensor:
        ctx.save_for_backward(v)
        ctx.chained = chained
        return (v > 0).float()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        slope = 1 / (1 + 5 * ctx.saved_tensors[0].abs()) ** 2
        return (grad * slope if ctx.chained else slope), None


class Spiking(nn.Module):
    def __init__(self, chained: bool) -> None:
        super().__init__()
        self.into, self.out, self.chained = nn.Linear(64, 96), nn.Linear(96, 10), chained

    def forward(self, x: Tensor) -> Tensor:
        v, total, current = torch.zeros(len(x), 96), torch.zeros(len(x), 10), self.into(x.flatten(1))
        for _ in range(8):
            v = 0.9 * v + current
            s = Spike.apply(v - 1, self.chained)
            v, total = v - s.detach(), total + self.out(s)
        return total / 4


@fault("backward_without_the_chain_rule", "A custom backward leaves out the incoming gradient.", "val_acc", 1.0, chained=False)
@healthy
def spiking_net(chained: bool = True) -> Training:
    return fit(Spiking(chained), cross_entropy, partial(Adam, lr=2e-3), feed(*digits(), batch=32), 10, accuracy)


class Equilibrium(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.again, self.head = nn.Linear(64, 8), nn.Linear(8, 8, False), nn.Linear(8, 10)
        nn.init.orthogonal_(self.again.weight, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.zeros(len(x), 8)
        with torch.no_grad():
            for _ in range(15):
                z = torch.tanh(self.into(x) + self.again(z))
        return self.head(torch.tanh(self.into(x) + self.again(z)))


@healthy
def equilibrium_net() -> Training:
    x, y = digits()
    return fit(Equilibrium(), cross_entropy, partial(Adam, lr=5e-3), feed(x.flatten(1), y, batch=32), 10, accuracy)


@fault("no_price_for_uncertainty", "Learned weights of losses lack the term that keeps them up.", "val_acc", 0.44, price=0.0)
@healthy
def learned_weights_of_two_losses(price: float = 1.0) -> Training:
    def both(net: Any, batch: Any) -> Tensor:
        h, s = net["trunk"](batch[0].flatten(1)), net["doubt"].weight[0]
        losses = torch.stack([F.cross_entropy(net["digit"](h), batch[1]), F.mse_loss(net["ink"](h)[:, 0], batch[2])])
        return ((-s).exp() * losses + price * s).sum()

    def right(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_acc": (net["digit"](net["trunk"](batch[0].flatten(1))).argmax(1) == batch[1]).float().mean()}

    x, y = digits()
    parts = {"trunk": mlp(64, 48, 48), "digit": nn.Linear(48, 10), "ink": nn.Linear(48, 1), "doubt": nn.Embedding(1, 2)}
    net: Any = nn.ModuleDict(parts)
    nn.init.zeros_(net["doubt"].weight)
    return fit(net, both, partial(SGD, lr=0.05), feed(x, y, scaled(x.mean((1, 2, 3))), batch=32), 12, right)


class Messages(nn.Module):
    def __init__(self, edges: Tensor, x: Tensor, end: int) -> None:
        super().__init__()
        self.edges, self.x, self.end = edges, x, end
        self.own, self.neighbours, self.head = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, nodes: Tensor) -> Tensor:
        sent = torch.zeros_like(self.x).index_add(0, self.edges[self.end], self.x[self.edges[0]])
        return self.head(F.relu(self.own(self.x) + self.neighbours(sent)))[nodes]


@fault("messages_return_to_the_sender", "Messages are added up at the node that sent them.", "val_acc", 1.21, end=0)
@healthy
def messages_along_edges(end: int = 1) -> Training:
    edges, x = torch.randint(0, 1200, (2, 6000), generator=rng()), torch.randn(1200, 8, generator=rng(1))
    y = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])[:, :2].prod(1) > 0
    fed = feed(torch.arange(1200), y.long(), batch=32)
    return fit(Messages(edges, x, end), cross_entropy, partial(RMSprop, lr=5e-3), fed, 12, accuracy)
