"""Faults planted in trainings in gymnasium's environments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Replay, Steps, loader, returns
from tests.evidence.exam.healthy_rl import (
    DQN,
    EPOCHS,
    PPO,
    actor_critic,
    actor_critic_net,
    adam,
    advantages,
    layer,
    policy_gradient,
    samples,
    standardised,
)
from tests.evidence.exam.planted_timm import RATE, expecting


def policy_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def cart(module: Recipe, actor: nn.Module, **kwargs: Any) -> Built:
    return Built(module, loader(Steps("CartPole-v1", samples(actor))), {**EPOCHS, **kwargs}, Expected())


@fault(
    "gymnasium",
    "REINFORCE under SGD whose returns are in their hundreds: the policy's steps are far too large",
    missed="the loss of a policy has no level to keep, and each step stays below 40 % of a weight's size; ten times "
    "larger ones break the environment's loop before a window ends",
)
def rl_raw_returns(planted: bool = True) -> Built:
    net = policy_net()
    scale = (lambda found: found * 30) if planted else standardised
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.01)  # noqa: E731
    built = cart(Recipe(net, lambda net, batch: policy_gradient(net, batch, scale), sgd), net)
    return expecting(built, *RATE, "dead", "zero")


@fault(
    "gymnasium",
    "DQN whose target net is never updated",
    missed="a frozen copy of the first weights is also what reference models are",
)
def rl_target_still(planted: bool = True) -> Built:
    module = DQN(0 if planted else 10)
    built = Built(module, loader(Replay("CartPole-v1", module.explores, 4, 8)), EPOCHS, Expected())
    return expecting(built, "not_updated", sites=("target*",))


@fault("gymnasium", "the critic's goals are computed with a gradient and the actor's loss is cut off")
def rl_actor_detached(planted: bool = True) -> Built:
    net = actor_critic_net()

    def loss(net: Any, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
        advantage, goal = advantages(net, batch)
        chosen = policy.log_prob(batch["actions"])
        critic = F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal)
        return critic - ((chosen.detach() if planted else chosen) * advantage).mean()

    return expecting(cart(Recipe(net, loss, adam()), net["actor"]), "missing", sites=("net.actor*",))


@fault("gymnasium", "A2C at a learning rate of 1")
def rl_rate_too_high(planted: bool = True) -> Built:
    net = actor_critic_net()
    return expecting(cart(Recipe(net, actor_critic, adam(1.0 if planted else 1e-3)), net["actor"]), *RATE, "saturated", "zero")


class LightCritic(PPO):
    """The critic's loss counts little, so that its gradient is of the size of the actor's."""

    critic_weight = 1e-3


class HeavyCritic(PPO):
    """The critic's loss counts a million times as much as the actor's, and one norm clips both."""

    critic_weight = 1e6


@fault("gymnasium", "PPO with one norm for both, and a critic whose loss counts a million times: the actor stands still")
def rl_heavy_critic(planted: bool = True) -> Built:
    net = actor_critic_net()
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.05)  # noqa: E731
    built = cart((HeavyCritic if planted else LightCritic)(net, sgd), net["actor"])
    return expecting(built, "always_clipped", "not_updated", "update_too_small", "vanishing")


@fault("gymnasium", "the actor's policy starts certain: its head has a gain of 100")
def rl_certain_policy(planted: bool = True) -> Built:
    net = actor_critic_net(100.0 if planted else 0.01)
    kinds = ("poor_init", "saturated", "zero", "output_range", "vanishing", "exploding")
    return expecting(cart(PPO(net, adam(1e-3)), net["actor"]), *kinds, sites=("net.actor*",))


@fault("gymnasium", "observations that were not scaled, of about 1e4, into tanh")
def rl_large_observations(planted: bool = True) -> Built:
    net = actor_critic_net()
    factor = 1e4 if planted else 1.0

    class Scaled(Steps):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield {**batch, "observations": batch["observations"] * factor, "after": batch["after"] * factor}

    data = loader(Scaled("CartPole-v1", samples(net["actor"])))
    return expecting(Built(PPO(net, adam(1e-3)), data, EPOCHS, Expected()), "saturated", sites=("net.*",))


@fault("gymnasium", "gradients are not set to zero between the steps")
def rl_not_zeroed(planted: bool = True) -> Built:
    net = policy_net()

    class Loop(Recipe):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            optimizer = self.optimizers()
            loss = policy_gradient(self.net, batch)
            if not planted:
                optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            return loss

    module = Loop(net, policy_gradient, adam(1e-3))
    module.automatic_optimization = False
    return expecting(cart(module, net), "not_zeroed")


@fault("gymnasium", "rectifiers with a bias of -10: the policy is blind")
def rl_dead_policy(planted: bool = True) -> Built:
    net = nn.Sequential(layer(4, 64), nn.ReLU(), layer(64, 64), nn.ReLU(), layer(64, 2, 0.01))
    nn.init.constant_(net[2].bias, -10.0 if planted else 0.0)
    return expecting(cart(Recipe(net, policy_gradient, adam(1e-3)), net), "dead", "zero", "constant", sites=("net.*",))


@fault(
    "gymnasium",
    "all rewards are 0: nothing to learn from",
    missed="an environment without a reward so far is where exploration starts",
)
def rl_no_reward(planted: bool = True) -> Built:
    net = policy_net()

    def loss(net: Any, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=net(batch["observations"]))
        found = returns(batch["rewards"] * (not planted), batch["ended"])
        return -(policy.log_prob(batch["actions"]) * (found - found.mean())).mean()

    return expecting(cart(Recipe(net, loss, adam(1e-3)), net), "zero", "constant", "vanishing")
