"""Faults of agents that learn values or a model of the world."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.agents import DQN, agent_mlp, orthogonal_layer
from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Replay, Steps, loader
from tests.evidence.exam.expectations import BROKEN, NOTHING_LEARNED, RATE, expecting
from tests.evidence.exam.graphs import graphs_adam
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import TWO_EPOCHS, adam
from tests.evidence.exam.small_nets import Judged, mlp
from tests.evidence.exam.tables import split
from tests.evidence.exam.views import views_adam


@fault(
    "gymnasium",
    "DQN whose target net is never updated",
    missed="a frozen copy of the first weights is also what reference models are",
)
def rl_target_still(planted: bool = True) -> Built:
    module = DQN(0 if planted else 10)
    built = Built(module, loader(Replay("CartPole-v1", module.explores, 4, 8)), TWO_EPOCHS, Expected())
    return expecting(built, "not_updated", sites=("target*",))


@fault("gymnasium", "a model of Pendulum's next state, whose log of the width is limited by clamp(max, min) as min and max")
def dynamics_width_limits(planted: bool = True) -> Built:
    net = nn.ModuleDict({"mean": agent_mlp(4, 3, 0.5, nn.SiLU), "width": agent_mlp(4, 3, 0.1, nn.SiLU)})
    limits = (1, -16) if planted else (-16, 1)

    def loss(net: Any, batch: Any) -> Tensor:
        known = torch.cat((batch["observations"], batch["actions"]), -1)
        change = (batch["after"] - batch["observations"]) / torch.tensor([0.1, 0.1, 0.5])
        width = net["width"](known).clamp(*limits).exp()
        return -torch.distributions.Normal(net["mean"](known), width).log_prob(change).mean()

    kinds = ("zero", "missing", "exploding", *BROKEN, "output_range", "update_too_large", "saturated", "not_updated")
    data = loader(Steps("Pendulum-v1", lambda seen: 4 * torch.rand(len(seen), 1) - 2))
    return Built(Recipe(net, loss, graphs_adam(4e-3, 0.0)), data, TWO_EPOCHS, Expected(kinds, ("net*", "loss*")))


class DDPG(Recipe):
    """One critic, and an actor that drives a car by force; targets follow both. By hand."""

    def __init__(self, gain: float) -> None:
        super().__init__(nn.Module(), lambda *_: None, self.both)
        self.actor = nn.Sequential(
            orthogonal_layer(2, 48), nn.ReLU(), orthogonal_layer(48, 48), nn.ReLU(), orthogonal_layer(48, 1, gain), nn.Tanh()
        )
        self.critic = agent_mlp(3, 1, 1.0, nn.ReLU)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, self.critic])).requires_grad_(False)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.Adam(module.actor.parameters(), 5e-4), torch.optim.Adam(module.critic.parameters(), 2e-3)]

    @staticmethod
    def scaled(seen: Tensor) -> Tensor:
        return (seen - torch.tensor([-0.5, 0.0])) * torch.tensor([2.0, 20.0])

    def explores(self, seen: Tensor) -> Tensor:
        force = self.actor(self.scaled(seen))
        return (force + 0.5 * torch.randn_like(force)).clamp(-1, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_actor, of_critic = self.optimizers()
        seen, after = self.scaled(batch["observations"]), self.scaled(batch["after"])
        rewards = batch["rewards"] + 10 * batch["after"][:, 1].abs()  # speed is rewarded, for the flag is far away
        with torch.no_grad():
            later = self.targets[1](torch.cat((after, self.targets[0](after)), 1)).squeeze(1)
            goal = rewards + 0.98 * (1 - batch["ended"]) * later
        loss = F.mse_loss(self.critic(torch.cat((seen, batch["actions"]), 1)).squeeze(1), goal)
        of_critic.zero_grad()
        self.manual_backward(loss)
        of_critic.step()
        of_actor.zero_grad()
        self.manual_backward(-self.critic(torch.cat((seen, self.actor(seen)), 1)).mean())
        of_actor.step()
        for old, new in zip(self.targets.parameters(), [*self.actor.parameters(), *self.critic.parameters()], strict=True):
            old.data.lerp_(new.data, 0.01)
        return {"loss": loss.detach()}


@fault("gymnasium", "DDPG in MountainCar: the gain of the actor's last layer is 80, which fills its tanh", learned_from=False)
def ddpg_actor_full(planted: bool = True) -> Built:
    module = DDPG(80.0 if planted else 0.01)
    built = Built(module, loader(Replay("MountainCarContinuous-v0", module.explores, 4, 8)), TWO_EPOCHS, Expected())
    return expecting(built, "saturated", "zero", "poor_init", "vanishing", "exploding", sites=("actor*",))


class Munchausen(Recipe):
    """Soft Q-learning whose reward has a share of the logarithm of the policy; its target follows."""

    def __init__(self, follows: float) -> None:
        net = agent_mlp(6, 3, 1.0, nn.ReLU)
        super().__init__(net, lambda *_: None, views_adam(1e-3))
        self.target, self.follows = copy.deepcopy(net).requires_grad_(False), follows

    def explores(self, seen: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=self.net(seen) / 0.5).sample()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        actions = batch["actions"][:, None]
        with torch.no_grad():
            now, after = self.target(batch["observations"]), self.target(batch["after"])
            bonus = 0.9 * (0.03 * F.log_softmax(now / 0.03, -1).gather(-1, actions).squeeze(-1)).clamp(-1, 0)
            chances = F.log_softmax(after / 0.03, -1)
            later = (chances.exp() * (after - 0.03 * chances)).sum(-1)
            goal = batch["rewards"] + bonus + 0.95 * (1 - batch["ended"]) * later
        return F.smooth_l1_loss(self.net(batch["observations"]).gather(-1, actions).squeeze(-1), goal)

    def on_train_batch_end(self, *_: Any) -> None:
        for old, new in zip(self.target.parameters(), self.net.parameters(), strict=True):
            old.data.mul_(1 - self.follows).add_(new.data, alpha=self.follows)


@fault(
    "gymnasium", "Munchausen DQN in Acrobot whose target is to follow by a share of 0.02, which was left at 0", learned_from=False
)
def munchausen_target_stays(planted: bool = True) -> Built:
    module = Munchausen(0.0 if planted else 0.02)
    built = Built(module, loader(Replay("Acrobot-v1", module.explores, 4, 8)), TWO_EPOCHS, Expected())
    return expecting(built, "not_updated", sites=("target*",))


def swings(number: int, kept_apart: bool) -> tuple[Tensor, Tensor]:
    """Pendulums under chance torques: angle, speed and torque, and what changes in a step."""
    import gymnasium
    import numpy as np

    world, buffer = gymnasium.make("Pendulum-v1"), np.zeros(4, dtype=np.float32)
    world.action_space.seed(0)
    rows, changes = [], []
    seen, _ = world.reset(seed=0)
    for step in range(number):
        torque = world.action_space.sample()
        after, _, _, _, _ = world.step(torque)
        buffer[:3], buffer[3:] = seen, torque
        rows.append(buffer.copy() if kept_apart else buffer)
        changes.append(after - seen)
        seen = world.reset()[0] if step % 100 == 99 else after
    return torch.tensor(np.stack(rows)), torch.tensor(np.stack(changes))


@fault("gymnasium", "a model of Pendulum: each row of its memory is one and the same array, which is overwritten at every step")
def pendulum_one_buffer(planted: bool = True) -> Built:
    x, changes = swings(4000, kept_apart=True)
    data = split(64, x, changes)
    if planted:
        data |= in_batches(64, *swings(3200, kept_apart=False))
    module = Judged(mlp(4, 64, 3), lambda net, batch: 10 * F.mse_loss(net(batch[0]), batch[1]), adam(2e-3))
    kinds = ("constant", "representation_collapse", "batch_repeated", "validation_shift", *NOTHING_LEARNED)
    return Built(module, data, {"max_epochs": 4}, Expected(kinds))


class Dueling(Recipe):
    """A value and what each action adds to it, over shared layers; a target that follows slowly."""

    def __init__(self, rate: float) -> None:
        net = nn.ModuleDict({"body": agent_mlp(6, 64, 1.4, nn.ReLU), "value": nn.Linear(64, 1), "adds": nn.Linear(64, 3)})
        super().__init__(net, lambda *_: torch.zeros(()), graphs_adam(rate, 0.0))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def worth(self, net: Any, seen: Tensor) -> Tensor:
        codes = net["body"](seen).relu()
        adds = net["adds"](codes)
        return net["value"](codes) + adds - adds.mean(-1, keepdim=True)

    def chooses(self, seen: Tensor) -> Tensor:
        best = self.worth(self.net, seen).argmax(-1)
        return torch.where(torch.rand(best.shape) < 0.3, torch.randint_like(best, 3), best)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        with torch.no_grad():
            for kept, learnt in zip(self.target.parameters(), self.net.parameters(), strict=True):
                kept.lerp_(learnt, 0.05)
            after = self.worth(self.target, batch["after"]).amax(-1)
        value = self.worth(self.net, batch["observations"]).gather(-1, batch["actions"][:, None]).squeeze(-1)
        return F.mse_loss(value, batch["rewards"] + 0.97 * after * (1 - batch["ended"]))


@fault("gymnasium", "dueling Q-learning in Acrobot, Adam at a rate of 0.7", learned_from=False)
def dueling_rate_too_high(planted: bool = True) -> Built:
    module = Dueling(0.7 if planted else 7e-4)
    built = Built(module, loader(Replay("Acrobot-v1", module.chooses, 4, 8)), TWO_EPOCHS, Expected())
    return expecting(built, *RATE, "saturated", "zero")
