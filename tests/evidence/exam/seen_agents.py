"""Healthy trainings in gymnasium's environments by algorithms that no other module of the exam has."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.episodes import Replay, Steps, loader, returns
from tests.evidence.exam.healthy_rl import EPOCHS, adam, layer, mlp, samples, standardised
from tests.evidence.exam.seen_architectures import swings
from tests.evidence.exam.texts import batches

WELL = Expected()


class Categorical(Recipe):
    """C51: chances of 51 returns for each action, and a target net that is set to the trained one every ten steps."""

    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2 * 51))
        super().__init__(net, lambda *_: None, adam(2.5e-3, eps=0.01 / 64))
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
    return Built(module, loader(Replay("CartPole-v1", module.chooses, 4, 8, 60)), EPOCHS, WELL)


class Implicit(Recipe):
    """IQL: an expectile of the value, two critics, a policy that copies what was better than expected; three optimizers."""

    def __init__(self) -> None:
        super().__init__(nn.Module(), lambda *_: None, self._three)
        self.value, self.actor = mlp(3, 1, 1.0, nn.ReLU), mlp(3, 1, 0.01, nn.ReLU)
        self.critics = nn.ModuleList(mlp(4, 1, 1.0, nn.ReLU) for _ in range(2))
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
    return Built(Implicit(), batches(64, *(row.flatten(0, 1) for row in rows)), {**EPOCHS, "limit_train_batches": 45}, WELL)


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

    data = batches(64, known.flatten(0, 1), moves.flatten(0, 1))
    return Built(Recipe(Worlds(), loss, adam(2e-3)), data, {**EPOCHS, "limit_train_batches": 50}, WELL)


class Recurrent(nn.Module):
    """An actor and a critic over an LSTM that sees where the cart is, and not how fast it goes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.memory = nn.Sequential(layer(2, 32), nn.Tanh()), nn.LSTM(32, 32)
        self.actor, self.critic = layer(32, 2, 0.01), layer(32, 1, 1.0)
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
        super().__init__(Recurrent(), lambda *_: None, adam(2e-3, eps=1e-5))
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
    return Built(module, loader(Steps("CartPole-v1", module.chooses)), {**EPOCHS, "gradient_clip_val": 0.5}, WELL)


class Curious(nn.Module):
    """A policy, a critic, a random net that stays, and one that learns what it says (random network distillation)."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = mlp(2, 3, 0.01), mlp(2, 1, 1.0)
        self.random, self.guess = mlp(2, 16, 1.0, nn.ReLU).requires_grad_(False), mlp(2, 16, 1.0, nn.ReLU)
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
    return Built(Recipe(net, loss, adam(1e-3, eps=1e-5)), data, {**EPOCHS, "gradient_clip_val": 0.5}, WELL)
