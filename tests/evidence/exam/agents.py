"""Agents of gymnasium's environments that several families share: actors and critics, PPO, DQN, TD3, and what they learn by."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Recipe
from tests.evidence.exam.episodes import returns


def orthogonal_layer(fan_in: int, fan_out: int, gain: float = math.sqrt(2)) -> nn.Linear:
    """Orthogonal weights and a bias of 0."""
    made = nn.Linear(fan_in, fan_out)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


def agent_mlp(fan_in: int, fan_out: int, gain: float, activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    return nn.Sequential(
        orthogonal_layer(fan_in, 64), activation(), orthogonal_layer(64, 64), activation(), orthogonal_layer(64, fan_out, gain)
    )


def agents_adam(lr: float = 3e-3, **options: Any) -> Callable[[Any], Any]:
    return lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr, **options)


def actor_critic_net(head: float = 0.01) -> nn.ModuleDict:
    return nn.ModuleDict({"actor": agent_mlp(4, 2, head), "critic": agent_mlp(4, 1, 1.0)})


def samples(actor: Any) -> Any:
    """Actions by the policy."""
    return lambda seen: torch.distributions.Categorical(logits=actor(seen)).sample()


def standardised(values: Tensor) -> Tensor:
    return (values - values.mean()) / (values.std() + 1e-8)


def policy_gradient(net: Any, batch: Any, scale: Callable[[Tensor], Tensor] = standardised) -> Tensor:
    """REINFORCE."""
    policy = torch.distributions.Categorical(logits=net(batch["observations"]))
    return -(policy.log_prob(batch["actions"]) * scale(returns(batch["rewards"], batch["ended"]))).mean()


def advantages(net: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Returns with what the critic expects after the last step, over what it expects; and these returns."""
    with torch.no_grad():
        expected = net["critic"](batch["after"][-1]).squeeze(-1)
    rewards = batch["rewards"].clone()
    rewards[-1] += 0.99 * expected * (1 - batch["ended"][-1])
    goal = returns(rewards, batch["ended"])
    return goal - net["critic"](batch["observations"]).squeeze(-1).detach(), goal


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


class DQN(Recipe):
    """Q-learning with a target net that is set to the trained one every so many batches."""

    def __init__(self, every: int = 10) -> None:
        net = agent_mlp(4, 2, 1.0, nn.ReLU)
        super().__init__(net, lambda *_: None, agents_adam(1e-3))
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


@functools.cache
def swings(episodes: int = 64, steps: int = 60) -> tuple[Tensor, ...]:
    """What a controller that pumps energy sees, does and still gets in Pendulum; each with more or less noise."""
    import gymnasium

    worlds = gymnasium.make_vec("Pendulum-v1", episodes, vectorization_mode="sync")
    random = np.random.default_rng(0)
    noise = random.uniform(0.1, 1.5, episodes)
    seen, rows = worlds.reset(seed=0)[0], []
    for _ in range(steps):
        cosine, sine, speed = seen.T
        falls = np.clip(8 * np.arctan2(sine, cosine) + 2 * speed, -2, 2) * -1
        force = np.where(cosine > 0.8, falls, 2 * np.sign(speed))
        action = np.clip(force + noise * random.standard_normal(episodes), -2, 2).astype(np.float32)[:, None]
        after, reward, *_ = worlds.step(action)
        rows.append((seen, action / 2, reward[:, None]))
        seen = after
    states, actions, rewards = (torch.tensor(np.stack(row, 1)).float() for row in zip(*rows, strict=True))
    return states * torch.tensor([1, 1, 0.25]), actions, rewards.flip(1).cumsum(1).flip(1) / 300
