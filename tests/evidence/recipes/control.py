"""More agents, and nets that are wired or updated by hand: policies, critics, weights with a spread, loops over time."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.optim import SGD, Adam, AdamW, SparseAdam
from torch.optim.lr_scheduler import LinearLR
from torch.utils.data import DataLoader

from .case import Learner, Training, accuracy, cross_entropy, fault, fit, healthy
from .data import digits, feed, rng, scaled
from .metric import Catch
from .nets import convnet, follow, frozen, mlp

ROUNDS: dict[str, Any] = {"train_dataloaders": DataLoader(range(60)), "val_dataloaders": DataLoader(range(1))}  # type: ignore[arg-type]


class CartPole:
    """A batch of carts with poles; a game that is lost starts anew."""

    def __init__(self, games: int) -> None:
        self.state = 0.1 * torch.rand(games, 4) - 0.05

    def step(self, action: Tensor) -> Tensor:
        _, v, angle, spin = self.state.T
        push = (20.0 * action - 10 + 0.05 * spin**2 * angle.sin()) / 1.1
        turn = (9.8 * angle.sin() - angle.cos() * push) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        move = push - 0.05 * turn * angle.cos() / 1.1
        self.state = self.state + 0.02 * torch.stack([v, move, spin, turn], 1)
        lost = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21)
        self.state = torch.where(lost[:, None], 0.1 * torch.rand(len(lost), 4) - 0.05, self.state)
        return lost


class Reinforce(Learner):
    """Sixteen carts for 50 steps, and the returns to go of each."""

    def __init__(self, anew: bool) -> None:
        super().__init__(mlp(4, 32, 2, act=nn.Tanh), self.policy_loss, partial(Adam, lr=1e-2), None, None, "step")
        self.anew = anew

    def policy_loss(self, net: Any, batch: Any) -> Tensor:
        game, logp, lost = CartPole(16), [], []
        for _ in range(50):
            policy = Categorical(logits=net(game.state))
            action = policy.sample()
            logp.append(policy.log_prob(policy.sample() if self.anew else action))
            lost.append(game.step(action).float())
        returns = [torch.zeros(16)]
        for end in reversed(lost):
            returns.append((1 + 0.97 * returns[-1]) * (1 - end))
        goal = torch.stack(returns[:0:-1])
        return -(scaled(goal.flatten()) * torch.cat(logp)).mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        game = CartPole(64)
        losses = sum(game.step(self.net(game.state).argmax(1)).sum() for _ in range(100))
        self.log("val_length", 6400 / (64.0 + losses), batch_size=1)


@fault("another_action_is_scored", "The scored action is drawn anew and is not the one played.", "val_length", 1.0, anew=True)
@healthy
def reinforce_on_cartpole(anew: bool = False) -> Training:
    return Training(Reinforce(anew), ROUNDS, {"max_epochs": 1, "val_check_interval": 20})


class PPO(Learner):
    """Played afresh every fourth step; clipped ratios, a critic and a bonus for entropy."""

    def __init__(self, forwards: bool) -> None:
        super().__init__(mlp(15, 64, 4, act=nn.Tanh), self.clipped, partial(Adam, lr=1e-2), None, None, "step")
        self.forwards = forwards

    @torch.no_grad()
    def play(self) -> None:
        game, rows = Catch(64), []
        for _ in range(4):
            state, policy = game.see(), Categorical(logits=self.net(game.see())[:, :3])
            action = policy.sample()
            rows.append((state, action, policy.log_prob(action), game.step(action)[0]))
        self.states, self.actions, self.old, reward = (torch.stack(part) for part in zip(*rows, strict=True))
        self.returns = reward.cumsum(0) if self.forwards else reward.flip(0).cumsum(0).flip(0)

    def clipped(self, net: Any, batch: Any) -> Tensor:
        if self.global_step % 4 == 0:
            self.play()
        out = net(self.states)
        policy, value = Categorical(logits=out[..., :3]), out[..., 3]
        gain = self.returns - value.detach()
        ratio = (policy.log_prob(self.actions) - self.old).exp()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return -surrogate.mean() + 0.5 * F.mse_loss(value, self.returns) - 0.01 * policy.entropy().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        game = Catch(200)
        self.log("val_return", sum(game.step(self.net(game.see())[:, :3].argmax(1))[0].mean() for _ in range(4)), batch_size=1)


@fault("returns_from_the_past", "Rewards are summed from the start, not to the end of a game.", "val_return", 0.59, forwards=True)
@healthy
def ppo_catches_a_ball(forwards: bool = False) -> Training:
    return Training(PPO(forwards), ROUNDS, {"max_epochs": 4, "gradient_clip_val": 0.5})


class DDPG(LightningModule):
    """A point that is to be brought to the origin; noise is added to the actions of the actor."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.own = False, own
        self.actor, self.critic = nn.Sequential(mlp(2, 32, 32, 1), nn.Tanh()), mlp(3, 64, 64, 1)
        self.slow_actor, self.slow_critic = frozen(self.actor), frozen(self.critic)

    def configure_optimizers(self) -> Any:
        return Adam((self.actor if self.own else self.critic).parameters(), 1e-3), Adam(self.critic.parameters(), 3e-3)

    def step(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        speed = (state[:, 1:] + 0.3 * action).clamp(-1, 1)
        after = torch.cat([(state[:, :1] + 0.3 * speed).clamp(-2, 2), speed], 1)
        return after, -(after**2).sum(1, keepdim=True)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        (state,), (opt_actor, opt_critic) = batch, self.optimizers()
        action = (self.actor(state).detach() + 0.5 * torch.randn(len(state), 1)).clamp(-1, 1)
        after, reward = self.step(state, action)
        goal = reward + 0.9 * self.slow_critic(torch.cat([after, self.slow_actor(after)], 1))
        critic_loss = F.mse_loss(self.critic(torch.cat([state, action], 1)), goal)
        opt_critic.zero_grad()
        self.manual_backward(critic_loss)
        opt_critic.step()
        actor_loss = -self.critic(torch.cat([state, self.actor(state)], 1)).mean()
        opt_actor.zero_grad()
        self.manual_backward(actor_loss)
        opt_actor.step()
        for slow, fast in ((self.slow_actor, self.actor), (self.slow_critic, self.critic)):
            follow(slow, fast, 0.95)
        self.log_dict({"critic_loss": critic_loss, "actor_loss": actor_loss})

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        (state,), total = batch, torch.zeros(())
        for _ in range(20):
            state, reward = self.step(state, self.actor(state))
            total = total + reward.mean()
        self.log("val_return", total)


@fault("critic_in_both_optimizers", "The actor's optimizer holds the critic's parameters.", "val_return", 1.0, own=False)
@healthy
def ddpg_brings_a_point_home(own: bool = True) -> Training:
    states = torch.rand(3200, 2, generator=rng()) * torch.tensor([4.0, 2.0]) - torch.tensor([2.0, 1.0])
    return Training(DDPG(own), feed(states), {"max_epochs": 5})


class Spread(nn.Module):
    def __init__(self, inside: int, out: int, rho: float) -> None:
        super().__init__()
        self.mean, self.rho = nn.Parameter(torch.randn(out, inside) / inside**0.5), nn.Parameter(torch.full((out, inside), rho))
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.mean + F.softplus(self.rho) * torch.randn_like(self.rho), self.bias)

    def divergence(self) -> Tensor:
        std = F.softplus(self.rho)
        return ((std**2 + self.mean**2 - 1) / 2 - std.log()).sum()


@fault("spreads_start_too_wide", "The spreads of the weights start at 4, not at 0.02.", "val_acc", 1.02, rho=4.0)
@healthy
def bayes_by_backprop(rho: float = -4.0) -> Training:
    net = nn.Sequential(nn.Flatten(), Spread(64, 32, rho), nn.ReLU(), Spread(32, 10, rho))

    def elbo(net: Any, batch: Any) -> Tensor:
        return cross_entropy(net, batch) + (net[1].divergence() + net[3].divergence()) / (64 * 1437)

    return fit(net, elbo, partial(Adam, lr=5e-3), feed(*digits()), 6, accuracy)


class TwoOptimizers(LightningModule):
    """Sparse embeddings and a dense head, each with its own optimizer, as for a click-through rate."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.automatic_optimization, self.late = False, late
        self.tables, self.head = nn.Embedding(120, 8, sparse=True), mlp(24, 32, 1)

    def configure_optimizers(self) -> Any:
        dense = AdamW(self.head.parameters(), lr=5e-3)
        return [SparseAdam(self.tables.parameters(), lr=1e-2), dense], [LinearLR(dense, 1.0, 0.1, 200)]

    def shared_step(self, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.head(self.tables(batch["ids"]).flatten(1))[:, 0], batch["click"])

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss = self.shared_step(batch)
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            if self.late:
                optimizer.zero_grad()
            optimizer.step()
            optimizer.zero_grad()
        self.lr_schedulers().step()
        self.log("train_loss", loss)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.shared_step(batch))


@fault("cleared_before_the_step", "Gradients are cleared between backward and step.", "val_loss", 1.0, late=True)
@healthy
def sparse_and_dense_click_rates(late: bool = False) -> Training:
    ids = torch.randint(0, 40, (2400, 3), generator=rng())
    worth = torch.randn(3, 40, generator=rng(1))
    score = worth[0, ids[:, 0]] * worth[1, ids[:, 1]] + worth[2, ids[:, 2]]
    fed = feed(ids=ids + torch.tensor([0, 40, 80]), click=(score > 0.5).float())
    return Training(TwoOptimizers(late), fed, {"max_epochs": 6})


class ByHand(nn.Module):
    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.words, self.cell, self.out, self.cut = nn.Embedding(8, 16), nn.GRUCell(16, 32), nn.Linear(32, 8), cut

    def forward(self, ids: Tensor) -> Tensor:
        state = torch.zeros(len(ids), 32)
        for column in ids.T:
            state = self.cell(self.words(column), state.detach() if self.cut else state)
        return self.out(state)


@fault("state_detached_each_step", "The hidden state is detached at each step of time.", "val_acc", 0.8, cut=True)
@healthy
def gru_cell_remembers(cut: bool = False) -> Training:
    ids = torch.randint(0, 8, (1600, 8), generator=rng())
    return fit(ByHand(cut), cross_entropy, partial(Adam, lr=1e-2), feed(ids, ids[:, 2], batch=32), 6, accuracy)


@fault("no_activations", "There is nothing between the linear layers.", "val_acc", 0.78, act=nn.Identity)
@healthy
def two_spirals(act: Any = nn.Tanh) -> Training:
    turn, arm = 1 + 8 * torch.rand(1200, generator=rng()), torch.arange(1200) % 2
    x = torch.stack([turn * (turn + 3.14 * arm).cos(), turn * (turn + 3.14 * arm).sin()], 1) / 4
    return fit(mlp(2, 64, 64, 2, act=act), cross_entropy, partial(Adam, lr=1e-2), feed(x, arm, batch=32), 8, accuracy)


@fault("running_statistics_never_arrive", "The momentum of BatchNorm is 0.001.", "val_acc", 0.77, momentum=0.001)
@healthy
def batch_normed_net_on_raw_digits(momentum: float = 0.1) -> Training:
    net = convnet(norm=partial(nn.BatchNorm2d, momentum=momentum))
    return fit(net, cross_entropy, partial(SGD, lr=0.05, momentum=0.9), feed(8 + 4 * digits()[0], digits()[1]), 4, accuracy)
