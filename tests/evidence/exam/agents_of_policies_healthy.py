"""Agents whose policy learns by the reward, or from an expert."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.agents import (
    PPO,
    actor_critic_net,
    advantages,
    agent_mlp,
    agents_adam,
    orthogonal_layer,
    policy_gradient,
    samples,
    standardised,
    swings,
)
from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.episodes import Steps, loader, returns
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import TWO_EPOCHS, adam
from tests.evidence.exam.small_nets import mlp


@healthy("gymnasium", "REINFORCE with standardised returns")
def rl_reinforce() -> Built:
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    return Built(
        Recipe(net, policy_gradient, agents_adam(1e-2)), loader(Steps("CartPole-v1", samples(net), 32)), TWO_EPOCHS, Expected()
    )


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
    return Built(Recipe(net, actor_critic, rmsprop), data, {**TWO_EPOCHS, "gradient_clip_val": 0.5}, Expected())


@healthy("gymnasium", "PPO: a policy head of gain 0.01, clipped at 0.5 in manual optimisation")
def rl_ppo() -> Built:
    net = actor_critic_net()
    return Built(
        PPO(net, agents_adam(2.5e-4, eps=1e-5)), loader(Steps("CartPole-v1", samples(net["actor"]))), TWO_EPOCHS, Expected()
    )


@healthy("gymnasium", "PPO in one loss with gradient_clip_val 0.5")
def rl_ppo_automatic() -> Built:
    net = nn.ModuleDict({"actor": agent_mlp(6, 3, 0.01), "critic": agent_mlp(6, 1, 1.0)})

    def loss(net: Any, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
        advantage, goal = advantages(net, batch)
        chosen = policy.log_prob(batch["actions"])
        ratio = (chosen - chosen.detach()).exp()
        gain = torch.min(ratio * standardised(advantage), ratio.clamp(0.8, 1.2) * standardised(advantage)).mean()
        return 0.5 * F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal) - gain - 0.01 * policy.entropy().mean()

    data = loader(Steps("Acrobot-v1", samples(net["actor"]), 16, 8))
    return Built(Recipe(net, loss, agents_adam(3e-4, eps=1e-5)), data, {**TWO_EPOCHS, "gradient_clip_val": 0.5}, Expected())


class Implicit(Recipe):
    """IQL: an expectile of the value, two critics, a policy that copies what was better than expected; three optimizers."""

    def __init__(self) -> None:
        super().__init__(nn.Module(), lambda *_: None, self._three)
        self.value, self.actor = agent_mlp(3, 1, 1.0, nn.ReLU), agent_mlp(3, 1, 0.01, nn.ReLU)
        self.critics = nn.ModuleList(agent_mlp(4, 1, 1.0, nn.ReLU) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.width = nn.Parameter(torch.zeros(1))
        self.automatic_optimization = False

    @staticmethod
    def _three(module: Any) -> Any:
        parts = ([*module.value.parameters()], [*module.critics.parameters()], [*module.actor.parameters(), module.width])
        return [torch.optim.Adam(part, 1e-3) for part in parts]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        seen, taken, rewards, after = batch
        known = torch.cat((seen, taken), 1)
        least = torch.stack([critic(known).squeeze(1) for critic in self.targets]).amin(0)
        ahead = least - self.value(seen).squeeze(1)
        expectile = ((0.7 - (ahead.detach() < 0).float()).abs() * ahead.square()).mean()
        with torch.no_grad():
            goal = rewards.squeeze(1) + 0.99 * self.value(after).squeeze(1)
        missed = [F.mse_loss(critic(known).squeeze(1), goal) for critic in self.critics]
        policy = torch.distributions.Normal(self.actor(seen).tanh(), self.width.clamp(-5, 2).exp())
        copied = -((3 * ahead.detach()).exp().clamp(max=100) * policy.log_prob(taken).squeeze(1)).mean()
        losses = (expectile, missed[0] + missed[1], copied)
        for chosen, loss in zip(self.optimizers(), losses, strict=True):
            chosen.zero_grad()
            self.manual_backward(loss)
            chosen.step()
        for target, critic in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            target.data.lerp_(critic.data, 0.005)
        return {"loss": sum(loss.detach() for loss in losses)}


@healthy("gymnasium", "implicit Q-learning from what others did in Pendulum: an expectile of 0.7, weights cut at 100")
def agent_implicit() -> Built:
    states, actions, goals = swings()
    rewards = (goals[:, :-1] - goals[:, 1:]) * 30
    rows = (states[:, :-1], actions[:, :-1], rewards, states[:, 1:])
    return Built(Implicit(), in_batches(64, *(row.flatten(0, 1) for row in rows)), {**TWO_EPOCHS, "limit_train_batches": 45}, WELL)


class Recurrent(nn.Module):
    """An actor and a critic over an LSTM that sees where the cart is, and not how fast it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.memory = nn.Sequential(orthogonal_layer(2, 32), nn.Tanh()), nn.LSTM(32, 32)
        self.actor, self.critic = orthogonal_layer(32, 2, 0.01), orthogonal_layer(32, 1, 1.0)
        for name, parameter in self.memory.named_parameters():
            nn.init.zeros_(parameter) if "bias" in name else nn.init.orthogonal_(parameter, 1.0)

    def forward(self, seen: Tensor, ended: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        outputs, codes = [], self.encoder(seen[..., [0, 2]])
        for code, over in zip(codes, ended, strict=True):
            state = tuple((1 - over)[None, :, None] * part for part in state)
            output, state = self.memory(code[None], state)
            outputs.append(output[0])
        hidden = torch.stack(outputs)
        return self.actor(hidden), self.critic(hidden).squeeze(-1), state


class Remembered(Recipe):
    """A2C whose state goes on from batch to batch, and begins anew where an episode does."""

    copies = 8

    def __init__(self) -> None:
        super().__init__(Recurrent(), lambda *_: None, agents_adam(2e-3, eps=1e-5))
        self.acting, self.begins = self.zeros(), torch.zeros(1, self.copies)
        self.angles: Tensor | None = None
        self.learning = self.zeros()

    def zeros(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(1, self.copies, 32), torch.zeros(1, self.copies, 32)

    def on_train_epoch_start(self) -> None:
        self.acting, self.learning, self.begins, self.angles = self.zeros(), self.zeros(), torch.zeros(1, self.copies), None

    def chooses(self, seen: Tensor) -> Tensor:
        over = torch.zeros(1, self.copies)
        if self.angles is not None:  # an episode is over where the pole fell and stands again
            over = (self.angles[:, 2].abs() > 0.2095).float()[None] + (self.angles[:, 0].abs() > 2.4).float()[None]
        self.angles = seen
        logits, _, self.acting = self.net(seen[None], over.clamp(max=1), self.acting)
        return torch.distributions.Categorical(logits=logits[0]).sample()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        over = torch.cat((self.begins, batch["ended"][:-1]))
        logits, values, state = self.net(batch["observations"], over, self.learning)
        self.learning, self.begins = tuple(part.detach() for part in state), batch["ended"][-1:]
        with torch.no_grad():
            rewards = batch["rewards"].clone()
            rewards[-1] += 0.99 * values[-1] * (1 - batch["ended"][-1])
            goal = returns(rewards / 10, batch["ended"])
        policy = torch.distributions.Categorical(logits=logits)
        gain = (policy.log_prob(batch["actions"]) * standardised(goal - values.detach())).mean()
        return 0.5 * F.mse_loss(values, goal) - gain - 0.01 * policy.entropy().mean()


@healthy("gymnasium", "A2C with an LSTM that remembers where the cart was, for it does not see how fast it goes; clipped at 0.5")
def agent_remembers() -> Built:
    module = Remembered()
    return Built(module, loader(Steps("CartPole-v1", module.chooses)), {**TWO_EPOCHS, "gradient_clip_val": 0.5}, WELL)


class Curious(nn.Module):
    """A policy, a critic, a random net that stays, and one that learns what it says (random network distillation)."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = agent_mlp(2, 3, 0.01), agent_mlp(2, 1, 1.0)
        self.random, self.guess = agent_mlp(2, 16, 1.0, nn.ReLU).requires_grad_(False), agent_mlp(2, 16, 1.0, nn.ReLU)
        self.register_buffer("variance", torch.zeros(()))


@healthy("gymnasium", "random network distillation in MountainCar: what is new is rewarding, for a net has not learnt it yet")
def agent_curious() -> Built:
    net = Curious()
    scaled = lambda seen: (seen - torch.tensor([-0.5, 0.0])) / torch.tensor([0.3, 0.02])  # noqa: E731

    def loss(net: Any, batch: Any) -> Tensor:
        seen, after = scaled(batch["observations"]), scaled(batch["after"]).clamp(-5, 5)
        new = (net.guess(after) - net.random(after)).square().mean(-1)
        found = returns(new.detach(), torch.zeros_like(new), 0.9)
        net.variance.copy_(torch.maximum(net.variance.lerp(found.var(), 0.01), found.var() * (net.variance == 0)))
        goal = found / (net.variance.sqrt() + 1e-8)
        values = net.critic(seen).squeeze(-1)
        policy = torch.distributions.Categorical(logits=net.actor(seen))
        gain = (policy.log_prob(batch["actions"]) * standardised(goal - values.detach())).mean()
        return new.mean() + 0.5 * F.mse_loss(values, goal) - gain - 0.01 * policy.entropy().mean()

    acts = samples(net.actor)
    data = loader(Steps("MountainCar-v0", lambda seen: acts(scaled(seen)), 16, 8))
    return Built(Recipe(net, loss, agents_adam(1e-3, eps=1e-5)), data, {**TWO_EPOCHS, "gradient_clip_val": 0.5}, WELL)


@healthy("gymnasium", "an expert in CartPole is copied (behaviour cloning)")
def rl_cloning() -> Built:
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 2] + 0.5 * seen[:, 3] + 0.05 * seen[:, 1] > 0).long()

    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(batch["observations"]).flatten(0, 1), batch["actions"].flatten())

    return Built(Recipe(net, loss, agents_adam(1e-3)), loader(Steps("CartPole-v1", expert)), TWO_EPOCHS, Expected())


@healthy("gymnasium", "a Gaussian policy in Pendulum with a critic (A2C), two optimizers' rates, clipped at 0.5")
def rl_gaussian() -> Built:
    net = nn.ModuleDict({"mean": agent_mlp(3, 1, 0.01), "critic": agent_mlp(3, 1, 1.0)})
    net["width"] = nn.Embedding(1, 1)
    nn.init.zeros_(net["width"].weight)

    def policy(seen: Tensor) -> Any:
        return torch.distributions.Normal(net["mean"](seen), net["width"].weight.exp())

    def loss(net: Any, batch: Any) -> Any:
        goal = returns(batch["rewards"] / 8, batch["ended"], 0.9)
        expected = net["critic"](batch["observations"]).squeeze(-1)
        chance = policy(batch["observations"]).log_prob(batch["actions"]).squeeze(-1)
        return F.mse_loss(expected, goal) - (chance * standardised(goal - expected.detach())).mean()

    def rates(module: Any) -> Any:
        others = [*net["mean"].parameters(), *net["width"].parameters()]
        return torch.optim.Adam([{"params": others, "lr": 3e-4}, {"params": net["critic"].parameters(), "lr": 2e-3}])

    data = loader(Steps("Pendulum-v1", lambda seen: policy(seen).sample().clamp(-2, 2)))
    return Built(Recipe(net, loss, rates), data, {**TWO_EPOCHS, "gradient_clip_val": 0.5}, Expected())


class Elite(Recipe):
    """Does what was done in the stretches that lasted longest (the cross-entropy method)."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        lasted = batch["ended"].cumsum(0).lt(1).sum(0).float()
        self.log("lasted", lasted.mean())
        best = lasted >= lasted.quantile(0.7)
        kept = batch["ended"].cumsum(0)[:, best] < 1
        told = self.net(batch["observations"][:, best][kept])
        return F.cross_entropy(told, batch["actions"][:, best][kept])


@healthy("gymnasium", "the cross-entropy method in CartPole: of eight stretches the longest are imitated, Adam at 0.01, tanh")
def agent_of_the_elite() -> Built:
    net = mlp(4, 64, 2, activation=nn.Tanh)

    def choose(seen: Tensor) -> Tensor:
        return torch.multinomial(net(seen).softmax(-1), 1)[:, 0]

    data = loader(Steps("CartPole-v1", choose, steps=48, copies=8, batches=75))
    return Built(Elite(net, None, adam(0.01)), data, {"max_epochs": 2}, Expected())
