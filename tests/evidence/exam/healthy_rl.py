"""Healthy trainings in gymnasium's environments, in the ways that single-file implementations are written."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.episodes import Replay, Steps, loader, returns

EPOCHS = {"max_epochs": 2}


def layer(fan_in: int, fan_out: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """Orthogonal weights and a bias of 0."""
    made = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def mlp(fan_in: int, fan_out: int, gain: float, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(layer(fan_in, 64), activation(), layer(64, 64), activation(), layer(64, fan_out, gain))


def adam(lr: float = 3e-3, **options: Any) -> Callable[[Any], Any]:
    return lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr, **options)


def actor_critic_net(head: float = 0.01) -> nn.ModuleDict:
    return nn.ModuleDict({"actor": mlp(4, 2, head), "critic": mlp(4, 1, 1.0)})


def samples(actor: Any) -> Any:
    """Actions by the policy."""
    return lambda seen: torch.distributions.Categorical(logits=actor(seen)).sample()


def standardised(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.std() + 1e-8)


def policy_gradient(net: Any, batch: Any, scale: Callable[[Tensor], Tensor] = standardised) -> Tensor:
    """REINFORCE."""
    policy = torch.distributions.Categorical(logits=net(batch["observations"]))
    return -(policy.log_prob(batch["actions"]) * scale(returns(batch["rewards"], batch["ended"]))).mean()


@healthy("gymnasium", "REINFORCE with standardised returns")
def rl_reinforce() -> Built:
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    return Built(Recipe(net, policy_gradient, adam(1e-2)), loader(Steps("CartPole-v1", samples(net), 32)), EPOCHS, Expected())


def advantages(net: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Returns with what the critic expects after the last step, over what it expects; and these returns."""
    with torch.no_grad():
        expected = net["critic"](batch["after"][-1]).squeeze(-1)
    rewards = batch["rewards"].clone()
    rewards[-1] += 0.99 * expected * (1 - batch["ended"][-1])
    goal = returns(rewards, batch["ended"])
    return goal - net["critic"](batch["observations"]).squeeze(-1).detach(), goal


def actor_critic(net: Any, batch: Any) -> Tensor:
    """A2C: the policy's loss, the critic's, and a bonus for entropy."""
    policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
    advantage, goal = advantages(net, batch)
    critic = F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal)
    return -(policy.log_prob(batch["actions"]) * advantage).mean() + 0.5 * critic - 0.01 * policy.entropy().mean()


@healthy("gymnasium", "A2C, RMSprop, clipped at 0.5")
def rl_actor_critic() -> Built:
    net = actor_critic_net()
    rmsprop = lambda module: torch.optim.RMSprop(module.parameters(), 7e-4, alpha=0.99, eps=1e-5)  # noqa: E731
    data = loader(Steps("CartPole-v1", samples(net["actor"])))
    return Built(Recipe(net, actor_critic, rmsprop), data, {**EPOCHS, "gradient_clip_val": 0.5}, Expected())


class PPO(Recipe):
    """Several passes over each batch in minibatches, by manual optimisation."""

    critic_weight = 0.5

    def __init__(self, net: nn.Module, optimizers: Callable[[Any], Any]) -> None:
        super().__init__(net, lambda *_: None, optimizers)
        self.automatic_optimization = False

    def policy(self, seen: Tensor) -> Any:
        return torch.distributions.Categorical(logits=self.net["actor"](seen))

    def training_step(self, batch: Any, batch_idx: int) -> None:
        advantage, goal = advantages(self.net, batch)
        with torch.no_grad():
            before = self.policy(batch["observations"]).log_prob(batch["actions"])
        rows = {"seen": batch["observations"], "actions": batch["actions"], "before": before}
        flat = {name: r.flatten(0, 1) for name, r in {**rows, "advantage": standardised(advantage), "goal": goal}.items()}
        for chosen in torch.randperm(len(flat["goal"])).chunk(4):
            self._step({name: r[chosen] for name, r in flat.items()})

    def _step(self, rows: Any) -> None:
        policy, optimizer = self.policy(rows["seen"]), self.optimizers()
        ratio = (policy.log_prob(rows["actions"]) - rows["before"]).exp()
        gain = torch.min(ratio * rows["advantage"], ratio.clamp(0.8, 1.2) * rows["advantage"]).mean()
        critic = F.mse_loss(self.net["critic"](rows["seen"]).squeeze(-1), rows["goal"])
        optimizer.zero_grad()
        self.manual_backward(self.critic_weight * critic - gain - 0.01 * policy.entropy().mean())
        self.clip_gradients(optimizer, 0.5, "norm")
        optimizer.step()


@healthy("gymnasium", "PPO: a policy head of gain 0.01, clipped at 0.5 in manual optimisation")
def rl_ppo() -> Built:
    net = actor_critic_net()
    return Built(PPO(net, adam(2.5e-4, eps=1e-5)), loader(Steps("CartPole-v1", samples(net["actor"]))), EPOCHS, Expected())


@healthy("gymnasium", "PPO in one loss with gradient_clip_val 0.5")
def rl_ppo_automatic() -> Built:
    net = nn.ModuleDict({"actor": mlp(6, 3, 0.01), "critic": mlp(6, 1, 1.0)})

    def loss(net: Any, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
        advantage, goal = advantages(net, batch)
        chosen = policy.log_prob(batch["actions"])
        ratio = (chosen - chosen.detach()).exp()
        gain = torch.min(ratio * standardised(advantage), ratio.clamp(0.8, 1.2) * standardised(advantage)).mean()
        return 0.5 * F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal) - gain - 0.01 * policy.entropy().mean()

    data = loader(Steps("Acrobot-v1", samples(net["actor"]), 16, 8))
    return Built(Recipe(net, loss, adam(3e-4, eps=1e-5)), data, {**EPOCHS, "gradient_clip_val": 0.5}, Expected())


class DQN(Recipe):
    """Q-learning with a target net that is set to the trained one every so many batches."""

    def __init__(self, every: int = 10) -> None:
        net = mlp(4, 2, 1.0, nn.ReLU)
        super().__init__(net, lambda *_: None, adam(1e-3))
        self.target, self.every = copy.deepcopy(net).requires_grad_(False), every

    def explores(self, seen: Tensor) -> Tensor:
        best = self.net(seen).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.2, torch.randint_like(best, 2), best)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.every and self.global_step % self.every == 0:
            self.target.load_state_dict(self.net.state_dict())
        value = self.net(batch["observations"]).gather(-1, batch["actions"][:, None]).squeeze(-1)
        with torch.no_grad():
            after = self.target(batch["after"]).max(-1).values
        return F.smooth_l1_loss(value, batch["rewards"] + 0.99 * after * (1 - batch["ended"]))


@healthy("gymnasium", "DQN with a target net, Huber loss")
def rl_dqn() -> Built:
    module = DQN()
    return Built(module, loader(Replay("CartPole-v1", module.explores, 4, 8)), EPOCHS, Expected())


class SAC(Recipe):
    """An actor and two critics with targets that follow, in manual optimisation."""

    def __init__(self) -> None:
        super().__init__(nn.Module(), lambda *_: None, self._both)
        self.actor = mlp(3, 2, 0.01, nn.ReLU)
        self.critics = nn.ModuleList(mlp(4, 1, 1.0, nn.ReLU) for _ in range(2))
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
    return Built(module, data, EPOCHS, Expected())
