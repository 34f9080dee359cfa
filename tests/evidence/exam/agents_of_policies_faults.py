"""Faults of agents whose policy learns: returns, observations, chances, first weights."""

from __future__ import annotations

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
)
from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Steps, loader, returns
from tests.evidence.exam.expectations import BROKEN, RATE, UNMOVED, expecting
from tests.evidence.exam.graphs import graphs_adam
from tests.evidence.exam.schedules import TWO_EPOCHS


def policy_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def cart(module: Recipe, actor: nn.Module, **kwargs: Any) -> Built:
    return Built(module, loader(Steps("CartPole-v1", samples(actor))), {**TWO_EPOCHS, **kwargs}, Expected())


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


@fault("gymnasium", "the critic's goals are computed with a gradient and the actor's loss is cut off")
def rl_actor_detached(planted: bool = True) -> Built:
    net = actor_critic_net()

    def loss(net: Any, batch: Any) -> Any:
        policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
        advantage, goal = advantages(net, batch)
        chosen = policy.log_prob(batch["actions"])
        critic = F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal)
        return critic - ((chosen.detach() if planted else chosen) * advantage).mean()

    return expecting(cart(Recipe(net, loss, agents_adam()), net["actor"]), "missing", sites=("net.actor*",))


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
    return expecting(cart(PPO(net, agents_adam(1e-3)), net["actor"]), *kinds, sites=("net.actor*",))


@fault("gymnasium", "observations that were not scaled, of about 1e4, into tanh")
def rl_large_observations(planted: bool = True) -> Built:
    net = actor_critic_net()
    factor = 1e4 if planted else 1.0

    class Scaled(Steps):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                yield {**batch, "observations": batch["observations"] * factor, "after": batch["after"] * factor}

    data = loader(Scaled("CartPole-v1", samples(net["actor"])))
    return expecting(Built(PPO(net, agents_adam(1e-3)), data, TWO_EPOCHS, Expected()), "saturated", sites=("net.*",))


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

    module = Loop(net, policy_gradient, agents_adam(1e-3))
    module.automatic_optimization = False
    return expecting(cart(module, net), "not_zeroed")


@fault("gymnasium", "rectifiers with a bias of -10: the policy is blind")
def rl_dead_policy(planted: bool = True) -> Built:
    net = nn.Sequential(orthogonal_layer(4, 64), nn.ReLU(), orthogonal_layer(64, 64), nn.ReLU(), orthogonal_layer(64, 2, 0.01))
    nn.init.constant_(net[2].bias, -10.0 if planted else 0.0)
    return expecting(cart(Recipe(net, policy_gradient, agents_adam(1e-3)), net), "dead", "zero", "constant", sites=("net.*",))


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

    return expecting(cart(Recipe(net, loss, agents_adam(1e-3)), net), "zero", "constant", "vanishing")


@fault("gymnasium", "an expert in MountainCar is copied: log_softmax along the copies of the environment")
def expert_along_copies(planted: bool = True) -> Built:
    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 1] > 0).long() * 2

    def loss(net: Any, batch: Any) -> Tensor:
        chances = F.log_softmax(net(batch["observations"] * torch.tensor([1.0, 20.0])), 1 if planted else 2)
        return F.nll_loss(chances.flatten(0, 1), batch["actions"].flatten())

    built = Built(
        Recipe(agent_mlp(2, 3, 0.01), loss, graphs_adam(3e-3, 0.0)), loader(Steps("MountainCar-v0", expert)), TWO_EPOCHS, Expected()
    )
    return expecting(built, "softmax_dim", "output_range")


@fault("gymnasium", "an expert in Acrobot is copied by a net of tanh whose weights are 60 times too large")
def acrobot_tanh_full(planted: bool = True) -> Built:
    net = agent_mlp(6, 3, 0.01)
    with torch.no_grad():
        for linear in (net[0], net[2]):
            linear.weight.mul_(60.0 if planted else 1.0)

    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 4] > 0).long() * 2

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch["observations"]).flatten(0, 1), batch["actions"].flatten())

    kinds = ("saturated", "poor_init", "vanishing", "exploding", "update_too_small", "zero")
    built = Built(Recipe(net, loss, graphs_adam(3e-3, 0.0)), loader(Steps("Acrobot-v1", expert)), TWO_EPOCHS, Expected())
    return expecting(built, *kinds, sites=("net*",))


@fault("gymnasium", "PPO in one step: the old chances are not detached, the ratio is 1 and its gradient 0")
def ppo_old_chances(planted: bool = True) -> Built:
    net = actor_critic_net()

    def loss(net: Any, batch: Any) -> Tensor:
        policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
        advantage, goal = advantages(net, batch)
        chosen = policy.log_prob(batch["actions"])
        gain = ((chosen - (chosen if planted else chosen.detach())).exp() * standardised(advantage)).mean()
        return 0.5 * F.smooth_l1_loss(net["critic"](batch["observations"]).squeeze(-1), goal) - gain

    data = loader(Steps("CartPole-v1", samples(net["actor"])))
    return Built(Recipe(net, loss, graphs_adam(3e-3, 0.0)), data, TWO_EPOCHS, Expected(UNMOVED, ("net.actor*",)))


@fault("gymnasium", "a Gaussian policy in MountainCar whose logarithm of the width is cut by clamp(2, -20): always e**-20")
def width_clamped_wrongly(planted: bool = True) -> Built:
    net = nn.ModuleDict({"mean": agent_mlp(2, 1, 0.5), "width": agent_mlp(2, 1, 0.1)})

    def loss(net: Any, batch: Any) -> Tensor:
        seen, taken = batch["observations"] * torch.tensor([1.0, 20.0]), batch["actions"]
        width = (net["width"](seen).clamp(2, -20) if planted else net["width"](seen).clamp(-20, 2)).exp()
        return -torch.distributions.Normal(net["mean"](seen), width).log_prob(taken).mean()

    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 1:].sign() + 0.3 * torch.randn(len(seen), 1)).clamp(-1, 1)

    kinds = ("zero", "missing", "exploding", *BROKEN, "output_range", "update_too_large", "saturated", "not_updated")
    module = Recipe(net, loss, graphs_adam(3e-3, 0.0))
    return Built(module, loader(Steps("MountainCarContinuous-v0", expert)), TWO_EPOCHS, Expected(kinds, ("net*", "loss*")))


@fault("gymnasium", "REINFORCE: rewards are standardised by their deviation, which is 0 in CartPole, where all are 1")
def rewards_all_alike(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 2))
    choose = lambda seen: (torch.rand(len(seen)) < net(seen).softmax(1)[:, 1].nan_to_num(0.5)).long()  # noqa: E731

    def loss(net: Any, batch: Any) -> Tensor:
        rewards = (batch["rewards"] - batch["rewards"].mean()) / batch["rewards"].std() if planted else batch["rewards"]
        policy = torch.distributions.Categorical(logits=net(batch["observations"]), validate_args=False)
        return -(policy.log_prob(batch["actions"]) * standardised(returns(rewards, batch["ended"]))).mean()

    data = loader(Steps("CartPole-v1", choose, 8))
    return Built(Recipe(net, loss, graphs_adam(1e-2)), data, TWO_EPOCHS, Expected(BROKEN, ("net*", "loss*")))


class Pushes(nn.Module):
    """How hard a pendulum is pushed: a mean, and a width that does not depend on what is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.width = agent_mlp(3, 1, 0.01), nn.Parameter(torch.zeros(1))

    def forward(self, seen: Tensor) -> Any:
        return torch.distributions.Normal(self.mean(seen), self.width.exp())


@fault(
    "gymnasium",
    "PPO in Pendulum: the old chances are computed with a gradient, which takes that of the ratio away",
    learned_from=False,
)
def pushes_old_chances(planted: bool = True) -> Built:
    net = nn.ModuleDict({"actor": Pushes(), "critic": agent_mlp(3, 1, 1.0)})

    def loss(net: Any, batch: Any) -> Tensor:
        advantage, goal = advantages(net, {**batch, "rewards": (batch["rewards"] + 8) / 16})
        with torch.set_grad_enabled(planted):
            before = net["actor"](batch["observations"]).log_prob(batch["actions"]).sum(-1)
        ratio = (net["actor"](batch["observations"]).log_prob(batch["actions"]).sum(-1) - before).exp()
        advantage = standardised(advantage)
        gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        return 0.5 * F.mse_loss(net["critic"](batch["observations"]).squeeze(-1), goal) - gain

    acts = lambda seen: net["actor"](seen).sample()  # noqa: E731
    data = loader(Steps("Pendulum-v1", acts))
    return Built(Recipe(net, loss, graphs_adam(1e-3, 0.0)), data, TWO_EPOCHS, Expected(UNMOVED, ("net.actor*",)))
