"""Agents that learn values or a model of the world."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.agents import DQN, agent_mlp, agents_adam, orthogonal_layer, swings
from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.episodes import Replay, loader
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import TWO_EPOCHS


@healthy("gymnasium", "DQN with a target net, Huber loss")
def rl_dqn() -> Built:
    module = DQN()
    return Built(module, loader(Replay("CartPole-v1", module.explores, 4, 8)), TWO_EPOCHS, Expected())


class SAC(Recipe):
    """An actor and two critics with targets that follow, in manual optimisation."""

    def __init__(self) -> None:
        super().__init__(nn.Module(), lambda *_: None, self._both)
        self.actor = agent_mlp(3, 2, 0.01, nn.ReLU)
        self.critics = nn.ModuleList(agent_mlp(4, 1, 1.0, nn.ReLU) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.automatic_optimization = False

    @staticmethod
    def _both(module: Any) -> Any:
        return [torch.optim.Adam(part.parameters(), 1e-3) for part in (module.actor, module.critics)]

    def acts(self, seen: Tensor) -> Any:
        mean, log_std = self.actor(seen).chunk(2, -1)
        raw = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp()).rsample()
        chance = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp()).log_prob(raw) - (1 - raw.tanh() ** 2 + 1e-6).log()
        return 2 * raw.tanh(), chance.sum(-1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        of_actor, of_critics = self.optimizers()
        with torch.no_grad():
            action, chance = self.acts(batch["after"])
            least = torch.stack([c(torch.cat((batch["after"], action), -1)).squeeze(-1) for c in self.targets]).amin(0)
            goal = batch["rewards"] / 8 + 0.99 * (1 - batch["ended"]) * (least - 0.1 * chance)
        known = torch.cat((batch["observations"], batch["actions"]), -1)
        of_critics.zero_grad()
        self.manual_backward(sum((F.mse_loss(c(known).squeeze(-1), goal) for c in self.critics), torch.zeros(())))
        of_critics.step()
        action, chance = self.acts(batch["observations"])
        worth = torch.stack([c(torch.cat((batch["observations"], action), -1)).squeeze(-1) for c in self.critics]).amin(0)
        of_actor.zero_grad()
        self.manual_backward((0.1 * chance - worth).mean())
        of_actor.step()
        for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            target.data.lerp_(critic.data, 0.01)


@healthy("gymnasium", "SAC: two critics, targets that follow")
def rl_sac() -> Built:
    module = SAC()
    data = loader(Replay("Pendulum-v1", lambda seen: module.acts(seen)[0], 4, 8))
    return Built(module, data, TWO_EPOCHS, Expected())


class Categorical(Recipe):
    """C51: chances of 51 returns for each action, and a target net that is set to the trained one every ten steps."""

    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * 51))
        super().__init__(net, lambda *_: None, agents_adam(2.5e-3, eps=0.01 / 64))
        self.target = copy.deepcopy(net).requires_grad_(False)
        self.register_buffer("atoms", torch.linspace(0, 10, 51))

    def chooses(self, seen: Tensor) -> Tensor:
        best = (self.net(seen).view(-1, 2, 51).softmax(2) * self.atoms).sum(2).argmax(1)
        return torch.where(torch.rand(best.shape) < 0.1, torch.randint_like(best, 2), best)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step % 10 == 0:
            self.target.load_state_dict(self.net.state_dict())
        with torch.no_grad():
            chances = self.target(batch["after"]).view(-1, 2, 51).softmax(2)
            best = (chances * self.atoms).sum(2).argmax(1)
            known = chances[torch.arange(len(best)), best]
            places = (batch["rewards"][:, None] + 0.9 * self.atoms * (1 - batch["ended"][:, None])).clamp(0, 10)
            share = (1 - (places[:, :, None] - self.atoms).abs() / 0.2).clamp(0, 1)
            goal = (known[:, :, None] * share).sum(1)
        logits = self.net(batch["observations"]).view(-1, 2, 51)[torch.arange(len(goal)), batch["actions"]]
        return -(goal * logits.log_softmax(1)).sum(1).mean()


@healthy("gymnasium", "C51: the return's distribution over 51 atoms, as CleanRL has it, Adam's eps is 0.01 over the batch size")
def agent_categorical() -> Built:
    module = Categorical()
    return Built(module, loader(Replay("CartPole-v1", module.chooses, 4, 8, 60)), TWO_EPOCHS, WELL)


class Worlds(nn.Module):
    """Five nets of SiLU that say where Pendulum goes and how sure they are, within bounds that are learnt (PETS)."""

    def __init__(self, count: int = 5, width: int = 48) -> None:
        super().__init__()
        sizes = [(4, width), (width, width), (width, 6)]
        self.weights = nn.ParameterList(torch.empty(count, i, o) for i, o in sizes)
        self.biases = nn.ParameterList(torch.zeros(count, 1, o) for _, o in sizes)
        for weight in self.weights:
            nn.init.trunc_normal_(weight, std=1 / (2 * math.sqrt(weight.shape[1])))
        self.most, self.least = nn.Parameter(torch.full((1, 1, 3), 0.5)), nn.Parameter(torch.full((1, 1, 3), -10.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for index, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, F.silu(x) if index else x, weight)
        mean, width = x.chunk(2, -1)
        width = self.most - F.softplus(self.most - width)
        return mean, self.least + F.softplus(width - self.least)


@healthy("gymnasium", "five probabilistic models of Pendulum (PETS): each has rows of its own, bounds of the width learn too")
def agent_models() -> Built:
    states, actions, _ = swings()
    moves = states[:, 1:] - states[:, :-1]
    moves = (moves - moves.mean((0, 1))) / moves.std((0, 1))
    known = torch.cat((states, actions), 2)[:, :-1]
    known = (known - known.mean((0, 1))) / known.std((0, 1))

    def loss(net: Any, batch: Any) -> Tensor:
        rows = torch.randint(len(batch[0]), (5, 64))
        mean, width = net(batch[0][rows])
        each = (mean - batch[1][rows]).square() * (-width).exp() + width
        decay = sum(rate * w.square().sum() / 2 for rate, w in zip((2.5e-5, 5e-5, 7.5e-5), net.weights, strict=True))
        return each.mean((1, 2)).sum() + 0.01 * (net.most.sum() - net.least.sum()) + decay

    data = in_batches(64, known.flatten(0, 1), moves.flatten(0, 1))
    return Built(Recipe(Worlds(), loss, agents_adam(2e-3)), data, {**TWO_EPOCHS, "limit_train_batches": 50}, WELL)


class TD3(Recipe):
    """Two critics, an actor that learns at every second step, smoothed targets; by hand."""

    every = 2

    def __init__(self) -> None:
        super().__init__(nn.Module(), lambda *_: None, self.both)
        self.actor = nn.Sequential(
            orthogonal_layer(3, 64), nn.ReLU(), orthogonal_layer(64, 64), nn.ReLU(), orthogonal_layer(64, 1, 0.01), nn.Tanh()
        )
        self.critics = nn.ModuleList(agent_mlp(4, 1, 1.0, nn.ReLU) for _ in range(2))
        self.later = copy.deepcopy(nn.ModuleList([self.actor, *self.critics])).requires_grad_(False)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.Adam(part.parameters(), 1e-3) for part in (module.actor, module.critics)]

    def explores(self, seen: Tensor) -> Tensor:
        action = self.actor(seen)
        return 2 * (action + 0.1 * torch.randn_like(action)).clamp(-1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_actor, of_critics = self.optimizers()
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(batch["actions"])).clamp(-0.5, 0.5)
            action = 2 * (self.later[0](batch["after"]) + noise).clamp(-1, 1)
            after = torch.cat((batch["after"], action), 1)
            least = torch.minimum(self.later[1](after), self.later[2](after)).squeeze(1)
            goal = batch["rewards"] / 8 + 0.99 * (1 - batch["ended"]) * least
        known = torch.cat((batch["observations"], batch["actions"]), 1)
        loss = torch.stack([F.mse_loss(critic(known).squeeze(1), goal) for critic in self.critics]).sum()
        of_critics.zero_grad()
        self.manual_backward(loss)
        of_critics.step()
        if batch_idx % self.every == 0:
            action = 2 * self.actor(batch["observations"])
            of_actor.zero_grad()
            self.manual_backward(-self.critics[0](torch.cat((batch["observations"], action), 1)).mean())
            of_actor.step()
            for old, new in zip(self.later.parameters(), [*self.actor.parameters(), *self.critics.parameters()], strict=True):
                old.data.lerp_(new.data, 0.01)
        return {"loss": loss.detach()}


@healthy("gymnasium", "TD3 with an actor that learns at every second step")
def rl_td3() -> Built:
    module = TD3()
    return Built(module, loader(Replay("Pendulum-v1", module.explores, 4, 8)), TWO_EPOCHS, Expected())


class Duelling(nn.Module):
    """The value of a state, and what each action adds."""

    def __init__(self, seen: int, actions: int, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.value, self.adds = nn.Linear(width, 1), nn.Linear(width, actions)

    def forward(self, seen: Any) -> Any:
        hidden = self.body(seen)
        adds = self.adds(hidden)
        return self.value(hidden) + adds - adds.mean(-1, keepdim=True)


class DoubleDQN(Recipe):
    """The trained net chooses the next action, one that follows it says what it is worth."""

    follows = 0.02

    def __init__(self) -> None:
        net = Duelling(6, 3)
        super().__init__(net, lambda *_: None, agents_adam(1e-3))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def explores(self, seen: Tensor) -> Tensor:
        best = self.net(seen).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.3, torch.randint_like(best, 3), best)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        value = self.net(batch["observations"]).gather(1, batch["actions"][:, None]).squeeze(1)
        with torch.no_grad():
            chosen = self.net(batch["after"]).argmax(1, keepdim=True)
            after = self.target(batch["after"]).gather(1, chosen).squeeze(1)
        return F.smooth_l1_loss(value, batch["rewards"] + 0.99 * after * (1 - batch["ended"]))

    def on_train_batch_end(self, *_: Any) -> None:
        for old, new in zip(self.target.parameters(), self.net.parameters(), strict=True):
            old.data.lerp_(new.data, self.follows)


@healthy("gymnasium", "duelling double DQN in Acrobot, a target that follows, clipped at 10")
def rl_double_dqn() -> Built:
    module = DoubleDQN()
    data = loader(Replay("Acrobot-v1", module.explores, 4, 8))
    return Built(module, data, {**TWO_EPOCHS, "gradient_clip_val": 10.0}, Expected())


class QuantileDQN(Recipe):
    """QR-DQN: 16 quantiles of the return of each action, a target that is copied every 10 steps."""

    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.Unflatten(-1, (2, 16)))
        super().__init__(net, lambda *_: None, lambda module: torch.optim.Adam(module.net.parameters(), 1e-3, eps=0.01 / 32))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def explores(self, seen: Tensor) -> Tensor:
        best = self.net(seen).mean(-1).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.3, torch.randint_like(best, 2), best)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if batch_idx % 10 == 0:
            self.target.load_state_dict(self.net.state_dict())
        rows = torch.arange(len(batch["rewards"]))
        after = self.target(batch["after"])
        after = after[rows, after.mean(-1).argmax(-1)]
        goal = batch["rewards"][:, None] + 0.95 * (1 - batch["ended"][:, None]) * after
        apart = goal[:, None] - self.net(batch["observations"])[rows, batch["actions"]][:, :, None]
        middles = (torch.arange(16)[:, None] + 0.5) / 16
        huber = F.huber_loss(apart, torch.zeros_like(apart), reduction="none")
        return ((middles - (apart < 0).float()).abs() * huber).sum(1).mean()


@healthy("gymnasium", "QR-DQN: quantiles of the return under a quantile Huber loss, a target copied every 10 steps")
def rl_quantiles() -> Built:
    module = QuantileDQN()
    return Built(module, loader(Replay("CartPole-v1", module.explores, 4, 8)), {"max_epochs": 2}, WELL)


class Munchausen(Recipe):
    """Q-learning whose rewards are raised by the scaled logarithm of the chance of what was done."""

    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        super().__init__(net, lambda *_: None, lambda module: torch.optim.Adam(module.net.parameters(), 1e-3))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def choose(self, seen: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=self.net(seen) / 0.1).sample()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step % 20 == 0:
            self.target.load_state_dict(self.net.state_dict())
        heat, actions = 0.03, batch["actions"][:, None]
        with torch.no_grad():
            chances = (self.target(batch["observations"]) / heat).log_softmax(1).gather(1, actions)[:, 0]
            values = self.target(batch["after"])
            soft = heat * (values / heat).logsumexp(1)
            bonus = 0.9 * (heat * chances).clamp(-1, 0)
            goal = batch["rewards"] + bonus + 0.99 * (1 - batch["ended"]) * soft
        found = self.net(batch["observations"]).gather(1, actions)[:, 0]
        return F.smooth_l1_loss(found, goal)


@healthy(
    "gymnasium",
    "Munchausen DQN: rewards are raised by the chance of what was done, soft values, Huber loss, Adam",
    learned_from=False,
)
def rl_munchausen() -> Built:
    module = Munchausen()
    return Built(module, loader(Replay("CartPole-v1", module.choose, steps=4)), {"max_epochs": 3}, WELL)
